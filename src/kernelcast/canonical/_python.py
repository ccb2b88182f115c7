r"""What of a Python or Triton module counts: the syntax tree pruned, with the author's names gone.

A module may carry C++ in its strings, for an extension that it builds and calls: those sources are
reduced as one program, entered where the module names one of their functions. As with C, what is
dropped or renamed on a guess is told as a doubt. A module that does not parse keeps its names.
"""

from __future__ import annotations

import ast
import builtins
import re
import warnings
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal

from kernelcast.canonical._c import reduce_c
from kernelcast.canonical._lexer import PY_TOKEN, lex_c, print_c, readable, words

_UNREADABLE = (SyntaxError, ValueError, RecursionError, MemoryError)
# By what harnesses call a module when the problem does not say.
_ENTRIES = frozenset({"ModelNew", "Model", "kernel", "run", "custom_kernel", "solution", "solve"})
_BESIDE_ENTRIES = frozenset({"LAUNCH", "get_inputs", "get_init_inputs"})
_ANY = "*"
_BUILTINS = frozenset(dir(builtins))
_MOST_ROUNDS = 8  # what goes can leave more unused; a chain of that made on purpose may stay
_REFLECTION = frozenset({"globals", "locals", "vars", "eval", "exec", "inspect", "importlib"})
_C_MARKS = ("__global__", "#include", "torch::", "__kernel ", "at::Tensor", 'extern "C"')
_STANDS_IN = "\ue000"  # for an expression in an f-string that holds C++

# Methods and attributes that a base class or its caller gives a meaning.
_INHERITED = words(
    "forward backward apply setup_context vjp jvp training parameters named_parameters buffers "
    "modules children named_modules named_children named_buffers state_dict load_state_dict train "
    "eval to cuda cpu half float double bfloat16 requires_grad_ zero_grad register_buffer "
    "register_parameter register_module add_module extra_repr compile type "
    "save_for_backward saved_tensors needs_input_grad mark_dirty name value"
)
# Attributes of tensors and the like: an author's own of the same name is told apart by `self`.
_LIBRARY_ATTRIBUTES = _INHERITED | words(
    "T add add_ all amax amin any append argmax as_strided backends bias bmm chunk clamp clamp_ "
    "clone contiguous copy copy_ cos cumsum data data_ptr device dim div dtype element_size "
    "empty_cache eps exp expand fill_ flatten functional gather get grad grid groups half index "
    "index_select indices is_contiguous is_cuda item items keys kernel_size log max mean min mm "
    "mul mul_ ndim new_empty new_zeros norm num_features numel out_channels in_channels "
    "out_features in_features padding permute pow pin_memory ptr record_stream relu repeat "
    "requires_grad reshape rsqrt scatter_ select shape sigmoid sin size softmax split sqrt squeeze "
    "stack stride strides sub sub_ sum synchronize t tanh tolist topk transpose unbind unsqueeze "
    "untyped_storage values var view weight zero_ running_mean running_var normalized_shape "
    "dilation momentum affine hidden_size num_layers num_heads count format join split strip "
    "num_warps num_stages kwargs args key pre_hook"
)
_TAKES_ATTRIBUTE_NAME = words(
    "register_buffer register_parameter register_module add_module getattr setattr hasattr"
)
_ALIASES = {
    "numpy": "np",
    "torch.nn": "nn",
    "torch.nn.functional": "F",
    "triton.language": "tl",
}
_TELLERS = frozenset({"print", "warn", "warning", "info", "debug", "error"})
_DEFINED = re.compile(r"^(?:class|def) (\w+)\b", re.MULTILINE)
_IDENTIFIER = re.compile(r"[^\W\d]\w*\Z")
_CANONICAL = re.compile(r"(?:C|a|func|g|p|v)\d+\Z")
_MODULE, _ATTRIBUTE = -1, -2  # where a name that no single statement owns is numbered

_Function = ast.FunctionDef | ast.AsyncFunctionDef
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)
_Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef
_IMPORTS = (ast.Import, ast.ImportFrom)


def plain_python(source: str) -> str:
    """The module without comments, docstrings and layout, under its own names."""
    cleaned = _cleaned(source)
    try:
        tree = _parsed(cleaned)
        for node in ast.walk(tree):
            for branch in ("body", "orelse", "finalbody"):
                statements = getattr(node, branch, None)
                if isinstance(statements, list) and statements:
                    kept = [each for each in statements if not _is_docstring(each)]
                    setattr(node, branch, kept or [ast.Pass()])
        return ast.unparse(tree) + "\n"
    except _UNREADABLE:
        return cleaned


def reduce_python(source: str, entry: str | None = None) -> tuple[str, frozenset[str]]:
    """The canonical module and the doubts; `entry` is the name by which it is called."""
    cleaned = _cleaned(source)
    try:
        tree = _parsed(cleaned)
        doubts: set[str] = set()
        roots = _roots(tree, entry)
        _Tidy(doubts).visit(tree)
        for _ in range(_MOST_ROUNDS):
            if not _prune(tree, roots, doubts):
                break
        sources, exported = _reduce_embedded(tree, doubts)
        _Names(tree, roots or frozenset(), exported, doubts).rename()
        text = ast.unparse(tree) + "\n"
    except _UNREADABLE:
        return cleaned, frozenset()
    for mark, embedded in sources.items():
        text = text.replace(repr(mark), embedded)
    return text, frozenset(doubts)


def _cleaned(source: str) -> str:
    # A comment leaves its mark and an invisible character a space: a source that does not parse
    # must not come to parse without them, since it would then have another canonical source.
    return PY_TOKEN.sub(
        lambda match: {"comment": "#", "invisible": " "}.get(str(match.lastgroup), match[0]),
        readable(source),
    )


def _parsed(cleaned: str) -> ast.Module:
    with warnings.catch_warnings():
        # A doubtful escape in a kernel's string is not the user's affair.
        warnings.simplefilter("ignore")
        return ast.parse(cleaned)


def _is_docstring(statement: ast.stmt) -> bool:
    match statement:
        case ast.Pass() | ast.Expr(value=ast.Constant(value=str() | bytes())):
            return True
        case _:
            return False


def _is_literal(node: ast.expr | None) -> bool:
    match node:
        case ast.Constant():
            return True
        case ast.Tuple(elts=parts) | ast.List(elts=parts) | ast.Set(elts=parts):
            return all(map(_is_literal, parts))
        case ast.JoinedStr(values=parts):
            return all(map(_is_literal, parts))
        case ast.Dict(keys=keys, values=values):
            return all(map(_is_literal, (*keys, *values)))
        case ast.UnaryOp(operand=operand):
            return _is_literal(operand)
        case ast.BinOp(left=left, right=right):
            return _is_literal(left) and _is_literal(right)
        case _:
            return False


def _holds_text(node: ast.AST) -> bool:
    return any(isinstance(each, ast.Constant) and _is_text(each.value) for each in ast.walk(node))


def _is_text(value: object) -> bool:
    return isinstance(value, str | bytes)


def _imports(tree: ast.Module) -> set[str]:
    return {name for name, path in _bound(tree.body).items() if path is not None}


def _root_name(node: ast.expr) -> str:
    """What an expression is read from: of `torch.ops.f(x)[0]` it is `torch`."""
    while isinstance(node, ast.Attribute | ast.Call | ast.Subscript):
        node = node.func if isinstance(node, ast.Call) else node.value
    return node.id if isinstance(node, ast.Name) else ""


# ---- code that does nothing ----------------------------------------------------------------------


class _Tidy(ast.NodeTransformer):
    """Statements without effect, branches never taken and texts only a person reads are gone."""

    def __init__(self, doubts: set[str]) -> None:
        self.doubts = doubts

    def generic_visit(self, node: ast.AST) -> ast.AST:
        has_end = bool(getattr(node, "finalbody", None))
        super().generic_visit(node)
        for branch in ("body", "orelse", "finalbody"):
            statements = getattr(node, branch, None)
            if isinstance(statements, list):
                kept = [each for each in statements if not self._is_idle(each)]
                is_body = branch == "body" and not isinstance(node, ast.Module)
                if not kept and (is_body or (branch == "finalbody" and has_end)):
                    kept = [ast.Pass()]
                setattr(node, branch, kept)
        return node

    @staticmethod
    def _is_idle(statement: ast.stmt) -> bool:
        match statement:
            case ast.Pass():
                return True
            case ast.Expr(value=ast.Constant(value=value)) if value is Ellipsis:
                return False
            case ast.Expr(value=value):
                return _is_literal(value)
            case ast.AnnAssign(value=None, annotation=ast.Constant()):
                return True
            case ast.Assign(targets=[ast.Name(id="__all__" | "__doc__")]):
                return True
            case ast.AugAssign(target=ast.Name(id="__all__")):
                return True
            case _:
                return False

    def visit_If(self, node: ast.If) -> Any:
        self.generic_visit(node)
        taken: list[ast.stmt] | None = None
        match node.test:
            case ast.Constant(value=value):
                taken = node.body if value else node.orelse
            case ast.Compare(
                left=ast.Name(id="__name__"),
                ops=[ast.Eq()],
                comparators=[ast.Constant(value="__main__")],
            ):
                taken = node.orelse
        return node if taken is None else taken

    def visit_While(self, node: ast.While) -> Any:
        self.generic_visit(node)
        match node.test:
            case ast.Constant(value=value) if not value:
                return node.orelse
            case _:
                return node

    def visit_Assert(self, node: ast.Assert) -> Any:
        node.msg = None
        return self.generic_visit(node)

    def visit_Raise(self, node: ast.Raise) -> Any:
        if isinstance(node.exc, ast.Call):
            node.exc.args = [_blank(each) for each in node.exc.args]
        return self.generic_visit(node)

    def visit_Expr(self, node: ast.Expr) -> Any:
        match node.value:
            case ast.Call(func=ast.Name(id=name) | ast.Attribute(attr=name)) if name in _TELLERS:
                node.value.args = [_blank(each) for each in node.value.args]
        return self.generic_visit(node)

    def visit_arg(self, node: ast.arg) -> Any:
        node.annotation = self._annotation(node.annotation)
        return node

    def visit_FunctionDef(self, node: ast.FunctionDef) -> Any:
        node.returns = self._annotation(node.returns)
        return self.generic_visit(node)

    def visit_AnnAssign(self, node: ast.AnnAssign) -> Any:
        node.annotation = self._annotation(node.annotation) or ast.Constant(None)
        return self.generic_visit(node)

    def _annotation(self, node: ast.expr | None) -> ast.expr | None:
        """An annotation without texts; Triton reads some, so they are doubts."""
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            self.doubts.add(node.value)
            return ast.Constant("tl.constexpr") if "constexpr" in node.value else None
        for each in ast.walk(node) if node else ():
            if isinstance(each, ast.Constant) and isinstance(each.value, str):
                self.doubts.add(each.value)
                each.value = ""
        return node


def _blank(node: ast.expr) -> ast.expr:
    match node:
        case ast.Constant(value=str()) | ast.JoinedStr():
            return ast.Constant("")
        case ast.BinOp(left=left, op=ast.Mod() | ast.Add()) if _holds_text(left):
            return ast.Constant("")
        case _:
            return node


# ---- reachability --------------------------------------------------------------------------------


def _roots(tree: ast.Module, entry: str | None) -> frozenset[str] | None:
    """The names by which the module is used; None if it does not say."""
    bound = set(_bound(tree.body))
    if entry in bound:
        return frozenset({str(entry), "LAUNCH"})
    if not bound & _ENTRIES:
        # It may be in a source that the module executes.
        texts = (each.value for each in ast.walk(tree) if isinstance(each, ast.Constant))
        bound |= {found for text in texts for found in _DEFINED.findall(str(text))}
    return frozenset(bound & (_ENTRIES | _BESIDE_ENTRIES)) if bound & _ENTRIES else None


@dataclass
class _Mentions:
    """What a part of the tree reads: names, and attributes but those of imported modules."""

    names: set[str] = field(default_factory=set)
    free: set[str] = field(default_factory=set)
    """The names among them that no function around binds."""
    attributes: set[str] = field(default_factory=set)
    blocks: list[tuple[ast.AST, bool]] = field(default_factory=list)
    """What holds statements, and whether that is in a function."""

    @classmethod
    def of(cls, part: ast.AST, imports: Collection[str]) -> _Mentions:
        found = cls()
        todo: list[tuple[ast.AST, frozenset[str], bool]] = [(part, frozenset(), False)]
        while todo:
            node, bound, is_inside = todo.pop()
            if isinstance(node, _FUNCTIONS):
                own = _bound(node.body if isinstance(node.body, list) else [node.body])
                bound |= {*own, *(each.arg for each in _arguments(node))}
                is_inside = True
            todo += [(child, bound, is_inside) for child in ast.iter_child_nodes(node)]
            match node:
                case ast.Name(id=name):
                    if not isinstance(node.ctx, ast.Store):
                        found.names.add(name)
                        if name not in bound:
                            found.free.add(name)
                case ast.Attribute(attr=name):
                    if not isinstance(node.ctx, ast.Store) and _root_name(node) not in imports:
                        found.attributes.add(name)
                case ast.AugAssign(target=ast.Name(id=name)):
                    found.names.add(name)
                    found.free.add(name)
                case ast.AugAssign(target=ast.Attribute(attr=name)):
                    found.attributes.add(name)
                case ast.Global(names=names) | ast.Nonlocal(names=names):
                    found.names.update(names)
                    found.free.update(names)
                case ast.ClassDef(body=body):
                    for each in body:
                        if not isinstance(each, _Definition):
                            found.attributes |= _names_read(each)
                case ast.Call(func=func, args=[_, given, *_]):
                    if _last_name(func) in _TAKES_ATTRIBUTE_NAME:
                        # Which attribute is meant may only be known when it runs.
                        told = given.value if isinstance(given, ast.Constant) else _ANY
                        found.attributes.add(str(told))
            if isinstance(getattr(node, "body", None), list):
                found.blocks.append((node, is_inside))
        return found


def _names_read(part: ast.AST) -> set[str]:
    return {
        node.id
        for node in ast.walk(part)
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)
    }


def _prune(tree: ast.Module, roots: frozenset[str] | None, doubts: set[str]) -> bool:
    """Drop what nothing mentions; whether there was anything."""
    imports = _imports(tree)
    parts = {id(each): _Mentions.of(each, imports) for each in tree.body}
    if any(not each.names.isdisjoint(_REFLECTION) for each in parts.values()):
        doubts.add(ast.unparse(tree))
    changed = False
    if roots is not None:
        live = _reached(tree, roots, parts)
        dropped = [each for each in tree.body if id(each) not in live]
        tree.body = [each for each in tree.body if id(each) in live]
        doubts.update(filter(None, map(_doubt_of, dropped)))
        changed = bool(dropped)
    kept_parts = [parts[id(each)] for each in tree.body]
    names = set().union(*(each.names for each in kept_parts))
    attributes = set().union(*(each.attributes for each in kept_parts))
    for node, is_inside in ((tree, False), *(pair for each in kept_parts for pair in each.blocks)):
        for branch in ("body", "orelse", "finalbody"):
            statements = getattr(node, branch, None) or []
            unused = {
                id(each): each
                for each in statements
                if _is_unused(
                    each, names, attributes, imports, in_class=isinstance(node, ast.ClassDef)
                )
                # What stands in the module itself has been judged, but for this.
                and (is_inside or isinstance(node, ast.ClassDef) or _sets_attribute(each))
            }
            if unused:
                kept = [each for each in statements if id(each) not in unused]
                needs_body = branch != "orelse" and node is not tree
                setattr(node, branch, kept or ([ast.Pass()] if needs_body else []))
                doubts.update(filter(None, map(_doubt_of, unused.values())))
                changed = True
    return changed


def _sets_attribute(statement: ast.stmt) -> bool:
    return isinstance(statement, ast.Assign) and isinstance(statement.targets[0], ast.Attribute)


def _reached(tree: ast.Module, roots: frozenset[str], parts: Mapping[int, _Mentions]) -> set[int]:
    by_name: dict[str, list[ast.stmt]] = {}
    todo: list[ast.stmt] = []
    for statement in tree.body:
        match statement:
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                names = [statement.name]
            case ast.Assign(targets=targets, value=value) if _is_literal(value) and all(
                isinstance(each, ast.Name) for each in targets
            ):
                names = [each.id for each in targets if isinstance(each, ast.Name)]
            case ast.AnnAssign(target=ast.Name(id=name), value=value) if _is_literal(value):
                names = [name]
            case _:
                todo.append(statement)
                continue
        for name in names:
            by_name.setdefault(name, []).append(statement)
        if not roots.isdisjoint(names):
            todo.append(statement)
    live = {id(each) for each in todo}
    while todo:
        for name in parts[id(todo.pop())].free & by_name.keys():
            for statement in by_name.pop(name):
                if id(statement) not in live:
                    live.add(id(statement))
                    todo.append(statement)
    return live


def _is_unused(
    statement: ast.stmt,
    names: set[str],
    attributes: set[str],
    imports: set[str],
    *,
    in_class: bool,
) -> bool:
    match statement:
        case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
            if not in_class:
                return name not in names
            is_own = not name.startswith("__") and name not in _INHERITED
            return is_own and not {name, _ANY} & attributes
        case (
            ast.Assign(targets=[ast.Name(id=name)], value=value)
            | ast.AnnAssign(target=ast.Name(id=name), value=ast.expr() as value)
        ):
            if in_class and (name.startswith("__") or {name, _ANY} & attributes):
                return False
            return name not in names and _is_literal(value) and _holds_text(value)
        case (
            ast.Assign(targets=[ast.Attribute(attr=name) as target], value=value)
            | ast.AnnAssign(target=ast.Attribute(attr=name) as target, value=ast.expr() as value)
        ):
            is_own = _root_name(target) not in imports and not {name, _ANY} & attributes
            return is_own and _is_literal(value) and _holds_text(value)
        case _:
            return False


def _doubt_of(statement: ast.stmt) -> str | None:
    """What dropping a statement may change: defining a function runs its head, never its body."""
    match statement:
        case ast.FunctionDef() | ast.AsyncFunctionDef():
            arguments = statement.args
            every = (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)
            runs = (
                *statement.decorator_list,
                *(each for each in (*arguments.defaults, *arguments.kw_defaults) if each),
                *(each.annotation for each in every if each.annotation),
                *((statement.returns,) if statement.returns else ()),
            )
            return None if all(map(_is_literal, runs)) else " ".join(map(ast.unparse, runs))
        case ast.ClassDef():
            return ast.unparse(statement)
        case ast.Assign(targets=[ast.Attribute()]):
            return ast.unparse(statement)
        case _:
            return None


# ---- C++ in strings ------------------------------------------------------------------------------


def _reduce_embedded(tree: ast.Module, doubts: set[str]) -> tuple[dict[str, str], dict[str, str]]:
    """Reduce the C++ in strings; its printed text by the mark left for it, and renamed exports."""
    imports = _imports(tree)
    found: list[ast.Constant | ast.JoinedStr] = []
    inside: set[int] = set()
    wanted: set[str] = set()
    for node in ast.walk(tree):
        match node:
            case ast.JoinedStr(values=parts):
                if any(isinstance(each, ast.Constant) and _is_c(each.value) for each in parts):
                    found.append(node)
                    inside.update(id(each) for each in parts)
            case ast.Constant(value=str() as text) if id(node) not in inside:
                if _is_c(text):
                    found.append(node)
                elif _IDENTIFIER.match(text):
                    wanted.add(text)
            case ast.keyword(arg="name", value=ast.Constant() as label):
                inside.add(id(label))  # of the extension, not of what is in it
            case ast.Attribute(attr=name, value=base) if _root_name(node) not in imports:
                if not isinstance(base, ast.Name) or base.id != "self":
                    wanted.add(name)
    if not found:
        return {}, {}
    texts = [each.value if isinstance(each, ast.Constant) else _joined(each) for each in found]
    reduced = reduce_c([lex_c(str(each)) for each in texts], wanted=wanted - _INHERITED)
    doubts |= reduced.doubts
    sources: dict[str, str] = {}
    for number, (node, lexed) in enumerate(zip(found, reduced.sources, strict=True)):
        text = print_c(lexed)
        if isinstance(node, ast.JoinedStr):
            node.values = list(_parted(text, node))
        else:
            node.value = mark = f"{_STANDS_IN}{number}{_STANDS_IN}"
            sources[mark] = _as_literal(f"\n{text}")
    return sources, reduced.exported


def _is_c(text: object) -> bool:
    return isinstance(text, str) and any(mark in text for mark in _C_MARKS)


def _joined(node: ast.JoinedStr) -> str:
    return "".join(
        str(each.value) if isinstance(each, ast.Constant) else f"{_STANDS_IN}{number}{_STANDS_IN}"
        for number, each in enumerate(node.values)
    )


def _parted(text: str, node: ast.JoinedStr) -> Iterator[ast.expr]:
    for number, part in enumerate(text.split(_STANDS_IN)):
        if number % 2 and part.isdigit() and int(part) < len(node.values):
            yield node.values[int(part)]
        elif part:
            yield ast.Constant(part)


def _as_literal(text: str) -> str:
    visible = text.replace("\n", "").replace("\t", "")
    if not _is_c(text) or '"""' in text or text.endswith(('"', "\\")) or not visible.isprintable():
        return repr(text)
    return f'r"""{text}"""'


# ---- names ---------------------------------------------------------------------------------------


@dataclass(eq=False)
class _Scope:
    kind: Literal["module", "class", "function"]
    outer: _Scope | None
    bound: dict[str, str | None]
    """Names bound here; those that an import binds, with the path of what they stand for."""
    receiver: str = ""
    """What a method calls its object."""

    def binder_of(self, name: str) -> _Scope | None:
        scope: _Scope | None = self
        while scope:
            if name in scope.bound and (scope.kind != "class" or scope is self):
                return scope
            scope = scope.outer
        return None


def _bound(body: Sequence[ast.AST], *, is_own: bool = True) -> dict[str, str | None]:
    """The names that statements bind in the scope they stand in."""
    names: dict[str, str | None] = {}
    elsewhere: set[str] = set()
    todo = list(reversed(body))
    while todo:
        node = todo.pop()
        match node:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                names[name] = None
                todo += [*node.decorator_list, *node.args.defaults]
                continue
            case ast.ClassDef(name=name):
                names[name] = None
                continue
            case ast.Name(id=name, ctx=ast.Store() | ast.Del()):
                names[name] = None
            case ast.Import(names=aliases):
                for each in aliases:
                    if each.asname:
                        names.setdefault(each.asname, each.name)
                    else:
                        root = each.name.partition(".")[0]
                        names.setdefault(root, root)
            case ast.ImportFrom(module=module, names=aliases, level=level):
                for each in aliases:
                    path = f"{'.' * level}{module or ''}:{each.name}"
                    names.setdefault(each.asname or each.name, path)
            case ast.Global(names=given) | ast.Nonlocal(names=given):
                elsewhere.update(given)
            case (
                ast.ExceptHandler(name=str() as name)
                | ast.MatchAs(name=str() as name)
                | ast.MatchStar(name=str() as name)
                | ast.MatchMapping(rest=str() as name)
            ):
                names[name] = None
            case ast.Lambda():
                continue
            case ast.ListComp() | ast.SetComp() | ast.DictComp() | ast.GeneratorExp():
                # Of a comprehension only `:=` binds outside.
                for part in ast.walk(node):
                    if isinstance(part, ast.NamedExpr):
                        names[part.target.id] = None
                continue
        todo += reversed(list(ast.iter_child_nodes(node)))
    return {name: path for name, path in names.items() if name not in elsewhere or not is_own}


class _Names:
    """Finds each place where a name of the author's stands, then numbers and writes them."""

    def __init__(
        self,
        tree: ast.Module,
        roots: frozenset[str],
        exported: dict[str, str],
        doubts: set[str],
    ) -> None:
        self.tree = tree
        self.roots = roots
        self.exported = exported
        self.doubts = doubts
        self.places: list[tuple[Callable[[str], None], str, int]] = []
        self.home = 0
        self.keywords: set[str] = set()
        self.imports_all = False
        self.claimed: dict[str, str] = dict.fromkeys(roots, "")
        self.extensions: dict[str, str] = {}
        self.taken: set[str] = set()
        self.parameters: dict[str, set[str]] = {}
        self.launched: set[str] = set()
        self.attributes: set[str] = set()
        self.functions: set[str] = set()
        self.classes: set[str] = set()
        module = _bound(tree.body)
        for node in ast.walk(tree):
            if isinstance(node, ast.Global):
                module.update(dict.fromkeys(node.names))
        self.module = _Scope("module", None, module)
        self.keeps_all = not roots
        self._survey()

    def rename(self) -> None:
        """Write canonical names into the tree: each top-level statement numbers its own anew."""
        for number, statement in enumerate(self.tree.body):
            self.home = number
            self._visit(statement, self.module)
        if any(
            isinstance(node, ast.Name) and node.id in _REFLECTION for node in ast.walk(self.tree)
        ):
            self.doubts.update(name for _, name, _ in self.places)
        names: dict[tuple[int, str], str] = {}
        counts: Counter[tuple[int, str]] = Counter()
        for write, name, home in self.places:
            if home == _ATTRIBUTE:
                prefix = "a"
            elif name in self.keywords:
                home, prefix = _MODULE, "p"
            elif home == _MODULE:
                prefix = "func" if name in self.functions else "g"
                prefix = "C" if name in self.classes else prefix
            else:
                prefix = "v"
            while (home, name) not in names or names[home, name] in self.taken:
                counts[home, prefix] += 1
                names[home, name] = f"{prefix}{counts[home, prefix]}"
            write(names[home, name])

    # What there is to know before the first name is judged.
    def _survey(self) -> None:
        shared: set[str] = set()
        imports = [each for each in ast.walk(self.tree) if isinstance(each, _IMPORTS)]
        imported = _bound(imports).keys()
        self.imports_all = "*" in imported
        for node in ast.walk(self.tree):
            match node:
                case ast.FunctionDef() | ast.AsyncFunctionDef():
                    names = {each.arg for each in _arguments(node)}
                    self.parameters.setdefault(node.name, set()).update(names)
                    self.functions.add(node.name)
                    decorators = " ".join(map(ast.unparse, node.decorator_list))
                    if "jit" in decorators or "triton" in decorators:
                        self.launched |= names
                case ast.ClassDef(name=name, body=body):
                    self.classes.add(name)
                    members = set(_bound(body))
                    self.attributes |= members
                    shared |= members & _LIBRARY_ATTRIBUTES
                    for each in body:
                        if isinstance(each, _Function) and each.name == "__init__":
                            names = {argument.arg for argument in _arguments(each)}
                            self.parameters.setdefault(name, set()).update(names)
                case ast.Attribute(attr=name, ctx=ast.Store(), value=base):
                    if _root_name(base) not in imported:
                        self.attributes.add(name)
                case ast.Call(
                    func=func,
                    args=[*_, ast.Constant(value=str() as name)]
                    | [ast.Constant(value=str() as name), *_],
                ) if _last_name(func) in _TAKES_ATTRIBUTE_NAME:
                    self.attributes.add(name)
        self.attributes = {
            each
            for each in self.attributes - _INHERITED - shared
            if not each.startswith("__") and _IDENTIFIER.match(each)
        }

    def _is_imported(self, node: ast.expr, scope: _Scope) -> bool:
        """Whether an expression is read from an imported module: `torch.nn.functional`."""
        name = _root_name(node)
        binder = scope.binder_of(name)
        return binder is not None and binder.bound[name] is not None

    def _place(self, node: Any, attribute: str, name: str, home: int) -> None:
        self.places.append((partial(setattr, node, attribute), name, home))

    def _place_keyword(self, node: Any, attribute: str, name: str) -> None:
        self.keywords.add(name)
        self._place(node, attribute, name, _MODULE)

    def _home(self, name: str, scope: _Scope) -> int:
        """Whose number a variable gets: the module's, or that of the statement at hand."""
        binder = scope.binder_of(name)
        if binder and binder.kind == "class":
            return _ATTRIBUTE
        return _MODULE if binder is None or binder is self.module else self.home

    # ---- the walk --------------------------------------------------------------------------------

    def _visit(self, node: ast.AST, scope: _Scope) -> None:
        match node:
            case ast.Name(id=name):
                if new := self._fixed(name, scope):
                    node.id = new
                    if _CANONICAL.match(new):
                        self.taken.add(new)
                else:
                    self._place(node, "id", name, self._home(name, scope))
            case ast.FunctionDef() | ast.AsyncFunctionDef():
                self._visit_function(node, scope)
            case ast.ClassDef():
                self._visit_class(node, scope)
            case ast.Lambda():
                arguments = {each.arg: None for each in _arguments(node)}
                inner = _Scope("function", scope, {**arguments, **_bound([node.body])})
                self._visit(node.args, inner)
                self._visit(node.body, inner)
            case ast.ListComp() | ast.SetComp() | ast.DictComp() | ast.GeneratorExp():
                targets = _bound([each.target for each in node.generators])
                inner = _Scope("function", scope, targets)
                for each in node.generators:
                    self._visit(each, inner)
                for part in ("elt", "key", "value"):
                    if hasattr(node, part):
                        self._visit(getattr(node, part), inner)
            case ast.arg(arg=name):
                if name == scope.receiver:
                    node.arg = "self"
                else:
                    self._place(node, "arg", name, self.home)
                if node.annotation:
                    self._visit(node.annotation, scope)
            case ast.Attribute():
                self._visit(node.value, scope)
                self._visit_attribute(node, scope)
            case ast.Call():
                self._visit_call(node, scope)
            case ast.Dict(keys=keys, values=values):
                for key in keys:
                    self._visit_key(key, scope)
                for value in values:
                    self._visit(value, scope)
            case ast.Subscript(value=ast.Name(), slice=ast.Constant()):
                self._visit(node.value, scope)
                self._visit_key(node.slice, scope)
            case ast.Import() | ast.ImportFrom():
                self._visit_import(node, scope)
            case ast.Global(names=names) | ast.Nonlocal(names=names):
                for index, name in enumerate(names):
                    if not self._fixed(name, scope):
                        write = partial(names.__setitem__, index)
                        self.places.append((write, name, self._home(name, scope)))
            case ast.Constant(value=str() as text):
                if text in self.exported:
                    node.value = self.exported[text]
            case _:
                for attribute in ("name", "rest"):  # of an exception, of a pattern
                    bound = getattr(node, attribute, None)
                    if isinstance(bound, str) and not self._fixed(bound, scope):
                        self._place(node, attribute, bound, self._home(bound, scope))
                for child in ast.iter_child_nodes(node):
                    self._visit(child, scope)

    def _fixed(self, name: str, scope: _Scope) -> str | None:
        """The name something keeps or must get: an entry's, an import's, a method's object."""
        binder = scope.binder_of(name)
        if binder is None:
            if name in _BUILTINS or name.startswith("__") or self.imports_all:
                return name
            self.doubts.add(name)  # nothing binds it: it fails when it is reached
            return None
        if name == binder.receiver:
            return "self"
        path = binder.bound[name]
        if path is None and binder.kind == "class":
            return None if name in self.attributes else name
        if path is None:
            is_open = name in self.roots or (self.keeps_all and name[0] != "_")
            return name if is_open and binder is self.module else None
        wanted = _ALIASES.get(path.replace(":", "."), path.rpartition(":")[2].replace(".", "_"))
        if self.claimed.setdefault(wanted, path) != path:
            return None
        return wanted

    def _visit_function(self, node: _Function, scope: _Scope) -> None:
        for value in (*node.decorator_list, *node.args.defaults, *node.args.kw_defaults):
            if value:
                self._visit_decorating(value, scope)
        is_method = scope.kind == "class"
        is_static = any(
            isinstance(each, ast.Name) and each.id == "staticmethod" for each in node.decorator_list
        )
        arguments = _arguments(node)
        if is_method:
            if node.name in self.attributes:
                self.doubts.add(node.name)
                self._place(node, "name", node.name, _ATTRIBUTE)
        elif not self._fixed(node.name, scope):
            self._place(node, "name", node.name, self._home(node.name, scope))
        else:
            self.doubts.update(each.arg for each in arguments)
        bound = {**dict.fromkeys(each.arg for each in arguments), **_bound(node.body)}
        receiver = arguments[0].arg if is_method and not is_static and node.args.args else ""
        inner = _Scope("function", scope, bound, receiver)
        for each in arguments:
            annotation, each.annotation = each.annotation, None
            self._visit(each, inner)
            each.annotation = annotation
            if annotation:
                self._visit(annotation, scope)
        if node.returns:
            self._visit(node.returns, scope)
        for statement in node.body:
            self._visit(statement, inner)

    def _visit_class(self, node: ast.ClassDef, scope: _Scope) -> None:
        for each in (*node.decorator_list, *node.bases, *node.keywords):
            self._visit(each, scope)
        if not self._fixed(node.name, scope):
            self._place(node, "name", node.name, self._home(node.name, scope))
        else:
            for method in node.body:
                if isinstance(method, _Function):
                    self.doubts.update(each.arg for each in _arguments(method)[1:])
        inner = _Scope("class", scope, _bound(node.body))
        for statement in node.body:
            match statement:
                case (
                    ast.Assign(targets=[ast.Name(id=name) as target], value=value)
                    | ast.AnnAssign(target=ast.Name(id=name) as target, value=value)
                ) if name in self.attributes:
                    self.doubts.add(name)
                    self._place(target, "id", name, _ATTRIBUTE)
                    if value:
                        self._visit(value, inner)
                    if isinstance(statement, ast.AnnAssign):
                        self._visit(statement.annotation, inner)
                case _:
                    self._visit(statement, inner)

    def _visit_attribute(self, node: ast.Attribute, scope: _Scope) -> None:
        name = node.attr
        if self._is_imported(node.value, scope):
            return
        is_receiver = isinstance(node.value, ast.Name) and node.value.id == "self"
        is_own = name in self.attributes and (is_receiver or name not in _LIBRARY_ATTRIBUTES)
        if name in self.exported and not (is_receiver and is_own):
            node.attr = self.exported[name]
        elif is_own:
            self.doubts.add(name)
            self._place(node, "attr", name, _ATTRIBUTE)

    def _visit_call(self, node: ast.Call, scope: _Scope) -> None:
        func: ast.expr = node.func
        while isinstance(func, ast.Subscript):
            func = func.value
        called = _last_name(func)
        is_library = self._is_imported(func, scope) and not isinstance(func, ast.Call)
        known = set(self.parameters.get(called, ())) if not is_library else set()
        for each in node.args:
            # `functools.partial(f, x=1)` takes the names of `f`.
            if is_library and isinstance(each, ast.Name):
                known |= self.parameters.get(each.id, set())
        is_sure = isinstance(func, ast.Name) and not is_library
        for keyword in node.keywords:
            if keyword.arg and keyword.arg in known:
                if not is_sure:
                    self.doubts.add(keyword.arg)
                self._place_keyword(keyword, "arg", keyword.arg)
            elif keyword.arg and not is_library and keyword.arg in self.launched:
                self.doubts.add(keyword.arg)
                self._place_keyword(keyword, "arg", keyword.arg)
            elif called.startswith("load") and keyword.arg == "name":
                self._name_extension(keyword)
        takes_attribute = called in _TAKES_ATTRIBUTE_NAME
        self._visit(node.func, scope)
        for each in node.args:
            match each:
                case ast.Constant(value=str() as text) if (
                    takes_attribute and text in self.attributes
                ):
                    self.doubts.add(text)
                    self._place(each, "value", text, _ATTRIBUTE)
                case _:
                    self._visit(each, scope)
        for keyword in node.keywords:
            self._visit(keyword.value, scope)

    def _name_extension(self, keyword: ast.keyword) -> None:
        """The name of a built extension says nothing but which build it is."""
        if isinstance(keyword.value, ast.Constant | ast.JoinedStr):
            text = ast.unparse(keyword.value)
            self.doubts.add(text)
            label = self.extensions.setdefault(text, f"ext{len(self.extensions) + 1}")
            keyword.value = ast.Constant(label)

    def _visit_key(self, node: ast.expr | None, scope: _Scope) -> None:
        """A text that may name a parameter of a launched function: `META["BLOCK"]`."""
        match node:
            case ast.Constant(value=str() as text) if text in self.launched:
                self.doubts.add(text)
                self._place_keyword(node, "value", text)
            case ast.expr():
                self._visit(node, scope)

    def _visit_decorating(self, node: ast.expr, scope: _Scope) -> None:
        """A decorator or default; `key=["n"]` of an autotuner names parameters."""
        for each in ast.walk(node):
            if isinstance(each, ast.List):
                for element in each.elts:
                    if isinstance(element, ast.Constant) and element.value in self.launched:
                        self._visit_key(element, scope)
        self._visit(node, scope)

    def _visit_import(self, node: ast.Import | ast.ImportFrom, scope: _Scope) -> None:
        for alias in node.names:
            if isinstance(node, ast.Import) and not alias.asname:
                continue
            if alias.name == "*":
                continue
            local = alias.asname or alias.name
            new = self._fixed(local, scope)
            if new:
                alias.asname = None if new == alias.name else new
            else:
                self._place(alias, "asname", local, self._home(local, scope))


def _arguments(node: _Function | ast.Lambda) -> list[ast.arg]:
    given = node.args
    found = [*given.posonlyargs, *given.args]
    found += [given.vararg] if given.vararg else []
    found += given.kwonlyargs
    return found + ([given.kwarg] if given.kwarg else [])


def _last_name(node: ast.expr) -> str:
    match node:
        case ast.Name(id=name) | ast.Attribute(attr=name):
            return name
        case _:
            return ""
