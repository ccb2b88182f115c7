r"""Canonical form of Python and Triton modules, from their syntax trees.

What the entry does not reach is dropped. Names that the module binds and names that no list of the
closed vocabulary owns are numbered, strings are emptied. A module may carry C++ in its strings, for
an extension that it builds and calls: those sources are reduced as one program, entered where the
module names one of their functions. Source that does not parse keeps its layout and owned words.
"""

from __future__ import annotations

import ast
import re
import warnings
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from contextlib import suppress

from kernelcast.canonical._c import numbered_c, reduce_c
from kernelcast.canonical._lexer import (
    PY_TOKEN,
    PY_UNSEEN,
    STANDS_IN,
    Token,
    lex_c,
    lex_python,
    print_c,
    readable,
)
from kernelcast.canonical._vocabulary import NO_NAMES, KeptNames, Numbers, role, vocabulary

_UNREADABLE = (SyntaxError, ValueError, RecursionError, MemoryError)
# The names by which harnesses call a module when the problem does not name its entry.
_ENTRIES = frozenset({"ModelNew", "Model", "kernel", "run", "custom_kernel", "solution", "solve"})
_BESIDE_ENTRIES = frozenset({"LAUNCH", "get_inputs", "get_init_inputs"})
_ANY = "*"
_REFLECTION = frozenset({"globals", "locals", "vars", "eval", "exec", "inspect", "importlib"})
_MOST_ROUNDS = 8  # dropping a statement can leave another one unused
_C_MARKS = re.compile('__global__|#include|torch::|__kernel |at::Tensor|extern "C"')
_RAW_QUOTES = 'r"""'
_PYTHON_MARKS = re.compile(r"^(?:import|from|def|class|@triton)\b", re.MULTILINE)
_INHERITED = role("inherited")
_TAKES_ATTRIBUTE_NAME = role("takes_attribute_name")
_ALIASES = {"numpy": "np", "torch.nn": "nn", "torch.nn.functional": "F", "triton.language": "tl"}
_DEFINED = re.compile(r"^(?:class|def) (\w+)\b", re.MULTILINE)
_NUMBER = re.compile(r"0[xX][0-9a-fA-F_]+|0[oObB][0-7_]+|[\d_.]+(?:[eE][+-]?[\d_]+)?[jJ]?")
_MARK = re.compile(f"{STANDS_IN}\\d+{STANDS_IN}\\Z")
_BLOCKS = ("body", "handlers", "orelse", "finalbody", "cases")
# Fields without anything that counts: texts, operators, and whether a name is read or bound.
_PLAIN_FIELDS = frozenset({"ctx", "op", "ops", "id", "attr", "kind", "conversion", "type_comment"})
_FIELDS = {
    kind: tuple(name for name in kind._fields if name not in _PLAIN_FIELDS)
    for kind in vars(ast).values()
    if isinstance(kind, type) and issubclass(kind, ast.AST)
}
"""The fields that can hold nodes, by kind of node."""
_FIELDS[ast.Constant] = ()

_LITERAL = (
    *(ast.Constant, ast.Tuple, ast.List, ast.Set, ast.Dict, ast.JoinedStr),
    *(ast.UnaryOp, ast.unaryop, ast.BinOp, ast.operator),
)

_WITH_ROOT = (ast.Attribute, ast.Call, ast.Subscript)
_Function = ast.FunctionDef | ast.AsyncFunctionDef
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)
_DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)


def plain_python(source: str) -> str:
    """The module without comments, docstrings and layout, under its own names."""
    cleaned = _cleaned(source)
    try:
        return ast.unparse(_tidied(cleaned)) + "\n"
    except _UNREADABLE:
        return cleaned


def reduce_python(source: str, entry: str | None = None, own: KeptNames = NO_NAMES) -> str:
    """The canonical module; `entry` is the name by which the problem calls it.

    `own` are the author's names that stay.
    """
    cleaned = _cleaned(source)
    try:
        tree = _tidied(cleaned)
        imports = imported_names(tree)
        roots = _roots(tree, entry, imports)
        _prune_all(tree, roots, imports)
        exported, sources = _reduce_embedded(tree, imports, own)
        _Names(tree, roots or frozenset(), own, exported).visit(tree)
        text = ast.unparse(tree) + "\n"
    except _UNREADABLE:
        return _numbered_text(cleaned, own)
    for mark, embedded in sources.items():
        text = text.replace(repr(mark), embedded)
    return text


def lex_canonical(canonical: str) -> tuple[Token, ...]:
    """The tokens of a canonical module, in which only C++ is in raw strings."""
    return tuple(
        Token("string", repr(token.text[len(_RAW_QUOTES) : -3]))
        if token.kind == "string" and token.text.startswith(_RAW_QUOTES)
        else token
        for token in lex_python(canonical)
    )


def reachable_tree(
    source: str, entry: str | None, *, without: Collection[str] = ()
) -> tuple[ast.Module, bool]:
    """The syntax tree of what the entry reaches, and whether the module has an entry.

    Raises:
        SyntaxError: It is not Python. So do ValueError, RecursionError and MemoryError.
    """
    tree = _tidied(_cleaned(source))
    imports = imported_names(tree)
    roots = _roots(tree, entry, imports)
    _prune_all(tree, None if roots is None else roots.difference(without), imports)
    return tree, roots is not None


def embedded_sources(tree: ast.AST) -> list[str]:
    """The C++ in the strings of a module."""
    return [
        node.value
        for node in _nodes(tree)
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and is_c(node.value)
    ]


def numbered_python(source: str) -> str:
    """The module without comments and docstrings, with numbers as `numbered_c` gives them."""
    text = plain_python(source)
    times = Counter(match[0] for match in PY_TOKEN.finditer(text))
    own = {name for name in times if times[name] > 1} - vocabulary("python").members
    numbers = Numbers()

    def write(match: re.Match[str]) -> str:
        if match.lastgroup == "identifier" and match[0] in own:
            return numbers.of(match[0], "\1")
        if match.lastgroup == "string" and is_c(match[0]):
            with suppress(*_UNREADABLE):  # an f-string is no literal
                return numbered_c(lex_c(str(ast.literal_eval(match[0]))), vocabulary("hip"))
        return match[0]

    return text if times.keys() & _REFLECTION else PY_TOKEN.sub(write, text)


def _cleaned(source: str) -> str:
    # A comment leaves its mark and an invisible character a space: a source that does not parse
    # must not come to parse without them, since it would then have another canonical source.
    return PY_UNSEEN.sub(
        lambda match: {"comment": "#", "invisible": " "}.get(str(match.lastgroup), match[0]),
        readable(source),
    )


def _tidied(cleaned: str) -> ast.Module:
    """The syntax tree without what has no effect."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # doubtful escapes in the strings of a kernel
        tree = ast.parse(cleaned)
    _tidy(tree)
    return tree


def _numbered_text(cleaned: str, own: KeptNames) -> str:
    """Source that does not parse, with owned words and no others; `?` stands for literals."""
    owned = vocabulary("python").names
    numbers = Numbers(own)

    def write(match: re.Match[str]) -> str:
        text, kind = match[0], match.lastgroup
        if kind == "identifier":
            return text if text in owned else numbers.of(text, "v")
        is_hidden = kind == "string" or (kind == "number" and not _NUMBER.fullmatch(text))
        return "?" if is_hidden else text

    text = PY_TOKEN.sub(write, cleaned)
    return text if "?" in text else f"{text}?"  # it must not come to parse


def _is_literal(node: ast.expr | None) -> bool:
    if not isinstance(node, _LITERAL):
        return False
    return all(isinstance(part, _LITERAL) for part in _nodes(node))


def _root_name(node: ast.expr) -> str:
    """The name that an expression starts with: `torch` for `torch.ops.f(x)[0]`."""
    while isinstance(node, _WITH_ROOT):
        node = node.func if isinstance(node, ast.Call) else node.value
    return node.id if isinstance(node, ast.Name) else ""


def _last_name(node: ast.expr) -> str:
    match node:
        case ast.Name(id=name) | ast.Attribute(attr=name):
            return name
        case ast.Subscript(value=value):
            return _last_name(value)
        case _:
            return ""


def _arguments(node: _Function | ast.Lambda) -> set[str]:
    return {part.arg for part in _nodes(node.args) if isinstance(part, ast.arg)}


def _nodes(part: ast.AST) -> list[ast.AST]:
    """A part of the tree and all that counts in it, faster than `ast.walk`."""
    nodes = [part]
    for node in nodes:
        for name in _FIELDS[type(node)]:
            value = getattr(node, name)
            if type(value) is list:
                nodes += [item for item in value if isinstance(item, ast.AST)]
            elif isinstance(value, ast.AST):
                nodes.append(value)
    return nodes


def _statements(part: ast.AST) -> list[ast.AST]:
    """A part of the tree and the statements in it, without their expressions."""
    nodes = [part]
    for node in nodes:
        for branch in _BLOCKS:
            nodes += getattr(node, branch, ())
    return nodes


def imported_names(tree: ast.AST) -> dict[str, str]:
    """The names that imports bind, with the paths of what they stand for."""
    paths: dict[str, str] = {}
    for node in _statements(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                root = alias.name.partition(".")[0]
                paths.setdefault(alias.asname or root, alias.name if alias.asname else root)
        elif isinstance(node, ast.ImportFrom):
            for alias in node.names:
                paths.setdefault(alias.asname or alias.name, f"{node.module}.{alias.name}")
    return paths


def _bound(part: ast.AST) -> set[str]:
    """The variables and parameters of a part of the tree."""
    return {
        str(getattr(node, "id", None) or getattr(node, "arg", None))
        for node in _nodes(part)
        if isinstance(node, ast.arg)
        or (isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load))
    }


def _module_names(tree: ast.Module) -> set[str]:
    """The names that the module itself binds, in any of its blocks."""
    names: set[str] = set()
    todo: list[ast.AST] = [*tree.body]
    while todo:
        node = todo.pop()
        if isinstance(node, _DEFINITIONS):
            names.add(node.name)
        else:
            if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load):
                names.add(node.id)
            todo += ast.iter_child_nodes(node)
    return names


# ---- code that does nothing ----------------------------------------------------------------------


def _tidy(node: ast.AST) -> None:
    """Drop statements without effect, branches never taken and messages of assertions."""
    for branch in _BLOCKS:
        statements = getattr(node, branch, ())
        if not statements:
            continue
        for statement in statements:
            _tidy(statement)
        kept = [part for statement in statements for part in _effective(statement)]
        kept = [part for part in kept if not isinstance(part, ast.Pass)]
        needs_body = branch in ("body", "finalbody") and not isinstance(node, ast.Module)
        setattr(node, branch, kept or ([ast.Pass()] if needs_body else []))


def _effective(statement: ast.AST) -> Sequence[ast.AST]:
    """What remains of a statement."""
    match statement:
        case ast.Expr(value=value):
            is_ellipsis = isinstance(value, ast.Constant) and value.value is Ellipsis
            return [statement] if is_ellipsis or not _is_literal(value) else []
        case ast.Assign(targets=[ast.Name(id="__all__" | "__doc__"), *_]):
            return []
        case ast.AnnAssign(value=None, annotation=ast.Constant()):
            return []
        case ast.AugAssign(target=ast.Name(id="__all__")):
            return []
        case ast.If(test=ast.Constant(value=value)):
            return statement.body if value else statement.orelse
        case ast.If() if ast.unparse(statement.test) == "__name__ == '__main__'":
            return statement.orelse
        case ast.While(test=ast.Constant(value=value)) if not value:
            return statement.orelse
        case ast.Assert():
            statement.msg = None
    return [statement]


# ---- reachability --------------------------------------------------------------------------------


def _roots(tree: ast.Module, entry: str | None, imports: Collection[str]) -> frozenset[str] | None:
    """The names by which the module is used; None if it does not say."""
    bound = _module_names(tree) | {*imports}
    if entry in bound:
        return frozenset({str(entry), "LAUNCH"})
    if not bound & _ENTRIES:
        # The entry may be in a source that the module executes.
        texts = (node.value for node in _nodes(tree) if isinstance(node, ast.Constant))
        bound |= {name for text in texts for name in _DEFINED.findall(str(text))}
    return frozenset(bound & (_ENTRIES | _BESIDE_ENTRIES)) if bound & _ENTRIES else None


def _mentions(part: ast.AST, imports: Collection[str]) -> set[str]:
    """The names that a part of the tree reads, and the attributes but those of imports."""
    mentions: set[str] = set()
    for node in _nodes(part):
        match node:
            case ast.Name(id=name, ctx=ast.Load()):
                mentions.add(name)
            case ast.Attribute(attr=name, ctx=ast.Load()):
                if _root_name(node) not in imports:
                    mentions.add(name)
            case ast.AugAssign(target=target):
                mentions.add(_last_name(target))
            case ast.Global(names=names) | ast.Nonlocal(names=names):
                mentions.update(names)
            case ast.Call(func=func, args=[_, name, *_]):
                if _last_name(func) in _TAKES_ATTRIBUTE_NAME:
                    # A computed name may mean any attribute.
                    mentions.add(str(name.value) if isinstance(name, ast.Constant) else _ANY)
    return mentions


def _declared(statement: ast.stmt, imports: Collection[str]) -> set[str]:
    """The names without which a statement does nothing: of a definition or of literals."""
    match statement:
        case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
            return {name}
        case ast.Assign(targets=[target], value=value) | ast.AnnAssign(target=target, value=value):
            match target:
                case ast.Name(id=name) if _is_literal(value):
                    return {name}
                case ast.Attribute(attr=name) if _is_literal(value):
                    return {name, _ANY} if _root_name(target) not in imports else set()
    return set()


def _prune_all(tree: ast.Module, roots: frozenset[str] | None, imports: Collection[str]) -> None:
    for _ in range(_MOST_ROUNDS):
        if not _prune(tree, roots, imports):
            break


def _prune(tree: ast.Module, roots: frozenset[str] | None, imports: Collection[str]) -> bool:
    """Drop what nothing mentions; whether there was anything."""
    by_name: dict[str, list[ast.stmt]] = {}
    live: list[ast.stmt] = []
    for statement in tree.body:
        names = _declared(statement, imports)
        for name in names:
            by_name.setdefault(name, []).append(statement)
        if roots is None or not names or not roots.isdisjoint(names):
            live.append(statement)
    mentioned = set(_INHERITED)
    reached = {*map(id, live)}
    for statement in live:  # grows by what its statements mention
        names = _mentions(statement, imports)
        mentioned |= names
        for name in names & by_name.keys():
            new = [part for part in by_name.pop(name) if id(part) not in reached]
            reached.update(map(id, new))
            live += new
    changed = len(reached) < len(tree.body)
    tree.body = [statement for statement in tree.body if id(statement) in reached]
    for node in _statements(tree):
        is_kept = node is tree or (isinstance(node, ast.ClassDef) and _ANY in mentioned)
        for branch in () if is_kept else _BLOCKS:
            statements = getattr(node, branch, ())
            kept = [
                statement
                for statement in statements
                if not (names := _declared(statement, imports))
                or any(name in mentioned or name.startswith("__") for name in names)
            ]
            if len(kept) < len(statements):
                setattr(node, branch, kept or ([] if branch == "orelse" else [ast.Pass()]))
                changed = True
    return changed


# ---- C++ in strings ------------------------------------------------------------------------------


def _reduce_embedded(
    tree: ast.Module, imports: Collection[str], own: KeptNames
) -> tuple[dict[str, str], dict[str, str]]:
    """Reduce the C++ in strings; renamed functions, and printed text by the mark left for it."""
    embedded: list[ast.Constant | ast.JoinedStr] = []
    inside: set[int] = set()
    wanted: set[str] = set()
    for node in _nodes(tree):
        match node:
            case ast.JoinedStr(values=parts):
                if any(isinstance(part, ast.Constant) and is_c(part.value) for part in parts):
                    embedded.append(node)
                    inside.update(id(part) for part in parts)
            case ast.Constant(value=str() as text) if id(node) not in inside:
                if is_c(text):
                    embedded.append(node)
                elif text.isidentifier():
                    wanted.add(text)
            case ast.keyword(arg="name", value=ast.Constant() as label):
                inside.add(id(label))  # names the extension, not a function of it
            case ast.Attribute(attr=name, value=base) if _root_name(node) not in imports:
                if not isinstance(base, ast.Name) or base.id != "self":
                    wanted.add(name)
    if not embedded:
        return {}, {}
    texts = [
        str(node.value) if isinstance(node, ast.Constant) else _joined(node) for node in embedded
    ]
    reduced, exported = reduce_c(
        [lex_c(text) for text in texts], vocabulary("hip"), wanted=wanted - _INHERITED, own=own
    )
    sources: dict[str, str] = {}
    for number, (node, lexed) in enumerate(zip(embedded, reduced, strict=True)):
        text = print_c(lexed)
        if isinstance(node, ast.JoinedStr):
            node.values = list(_parted(text, node))
        else:
            node.value = mark = f"{STANDS_IN}{number}{STANDS_IN}"
            sources[mark] = _as_literal(f"\n{text}")
    return exported, sources


def is_c(text: object) -> bool:
    """Whether a string of a Python module is C++."""
    return isinstance(text, str) and _C_MARKS.search(text) is not None


def _joined(node: ast.JoinedStr) -> str:
    return "".join(
        str(part.value) if isinstance(part, ast.Constant) else f"{STANDS_IN}{number}{STANDS_IN}"
        for number, part in enumerate(node.values)
    )


def _parted(text: str, node: ast.JoinedStr) -> Iterator[ast.expr]:
    for number, part in enumerate(text.split(STANDS_IN)):
        if number % 2 and part.isdigit() and int(part) < len(node.values):
            yield node.values[int(part)]
        elif part:
            yield ast.Constant(part, kind="C++")


def _as_literal(text: str) -> str:
    visible = text.replace("\n", "").replace("\t", "")
    if not is_c(text) or '"""' in text or text.endswith(('"', "\\")) or not visible.isprintable():
        return repr(text)
    return f'{_RAW_QUOTES}{text}"""'


# ---- names ---------------------------------------------------------------------------------------


class _Names:
    """Numbers the names of a tree in place.

    Each top-level statement numbers its own anew. Names of the module, attributes and parameters
    that are passed by keyword have one number everywhere.
    """

    def __init__(
        self, tree: ast.Module, kept: frozenset[str], own: KeptNames, exported: dict[str, str]
    ) -> None:
        self.words = vocabulary("python")
        self.kept = kept | {"self", "cls"}
        self.own = own
        self.exported = exported
        self.home = ""
        self.bound: set[str] = set()
        self.prefixes = dict.fromkeys(_module_names(tree), "g")
        """Names with one number in the whole module."""
        self.launched: set[str] = set()
        """Parameters of compiled functions, which a launch may name."""
        self.attributes: set[str] = set()
        self.keywords: set[str] = set()
        """Parameters that a keyword or a text names."""
        self._survey(tree)
        self.imports: dict[str, str] = {}
        claimed: dict[str, str] = {}
        for local, path in imported_names(tree).items():
            wanted = _ALIASES.get(path, path.rpartition(".")[2])
            if wanted in self.words.members and claimed.setdefault(wanted, path) == path:
                self.imports[local] = wanted
            else:
                self.prefixes[local] = "g"
        self.numbers = Numbers(own.without(self.imports.values()))

    def _survey(self, tree: ast.Module) -> None:
        parameters: dict[str, set[str]] = {}
        calls: list[ast.Call] = []
        texts: set[str] = set()
        for node in _nodes(tree):
            match node:
                case ast.FunctionDef() | ast.AsyncFunctionDef():
                    names = _arguments(node) - self.kept
                    parameters.setdefault(node.name, set()).update(names)
                    if any("jit" in ast.unparse(part) for part in node.decorator_list):
                        self.launched |= names
                    if node.name in self.prefixes:
                        self.prefixes[node.name] = "func"
                case ast.ClassDef(name=name, body=body):
                    self.prefixes[name] = "C"
                    self.attributes |= _module_names(ast.Module(body, []))
                    for part in body:
                        if isinstance(part, _Function) and part.name == "__init__":
                            parameters.setdefault(name, set()).update(_arguments(part))
                case ast.Attribute(attr=name, ctx=ast.Store(), value=ast.Name(id="self")):
                    self.attributes.add(name)
                case ast.Call():
                    calls.append(node)
                case ast.Constant(value=str() as text):
                    texts.add(text)
        self.keywords = texts & self.launched
        self.attributes -= _INHERITED | {name for name in self.attributes if name[:2] == "__"}
        for call in calls:
            # `functools.partial(f, x=1)` takes the parameters of `f`.
            called = {_last_name(call.func), *map(_last_name, call.args)} & parameters.keys()
            known = self.launched.union(*(parameters[name] for name in called))
            self.keywords |= known & {str(keyword.arg) for keyword in call.keywords}
        self.prefixes.update(dict.fromkeys(self.keywords, "p"))

    def _name(self, name: str) -> str:
        if name in self.kept:
            return name
        if name in self.imports:
            return self.imports[name]
        if name in self.prefixes:
            return self.numbers.of(name, self.prefixes[name])
        if name in self.words.names and name not in self.bound:
            return name
        return self.numbers.of(name, "v", self.home)

    def _bound_name(self, name: str, *, in_class: bool) -> str:
        """The new name of a variable, which in a class is an attribute."""
        is_member = in_class and (name in self.attributes or name in self.words.members)
        return self._attribute(name, is_own=True) if is_member else self._name(name)

    def _attribute(self, name: str, *, is_own: bool = False) -> str:
        is_own = is_own and name in self.attributes
        if name in self.exported and not is_own:
            return self.exported[name]
        if name in self.words.members and not is_own:
            return name
        return self.numbers.of(name, "a", "attributes")

    def _string(self, text: str) -> str:
        """What may be seen of a text: a name as its number, a listed text, source, or nothing."""
        if text in self.exported or text in self.attributes:
            return self._attribute(text, is_own=True)
        if text in self.launched:
            return self._name(text)
        if text in self.words.strings or _MARK.match(text):
            return text
        if _PYTHON_MARKS.search(text):
            with suppress(*_UNREADABLE):
                tree = _tidied(_cleaned(text))
                _Names(tree, self.kept, self.own, self.exported).visit(tree)
                return ast.unparse(tree)
        return ""

    def visit(self, tree: ast.Module) -> None:
        """Rename the whole module."""
        for number, statement in enumerate(tree.body):
            self.home = str(number)
            self.bound = _bound(statement)
            self._visit(statement)

    def _visit(self, node: ast.AST, *, in_class: bool = False) -> None:
        """Rename a node and all in it. Every text of a node is replaced here, whatever its kind."""
        match node:
            case ast.Name(id=name):
                node.id = self._bound_name(name, in_class=in_class)
                return
            case ast.Constant(kind="C++"):
                return
            case ast.Constant(value=value):
                if isinstance(value, str | bytes):
                    node.value = self._string(value) if isinstance(value, str) else b""
                return
            case ast.Attribute(attr=name, value=base):
                is_self = isinstance(base, ast.Name) and base.id == "self"
                node.attr = self._attribute(name, is_own=is_self)
                self._visit(base)
                return
            case ast.keyword(arg=str() as name):
                node.arg = self._name(name) if name in self.keywords else self._attribute(name)
                self._visit(node.value)
                return
            case ast.Import() | ast.ImportFrom():
                self._visit_import(node)
                return
        for part in node._fields:
            value = getattr(node, part, None)
            if isinstance(value, str):
                setattr(node, part, self._bound_name(value, in_class=in_class))
            elif isinstance(value, ast.AST):
                self._visit(value, in_class=in_class and part != "args")
            elif isinstance(value, list):
                is_body = in_class and not isinstance(node, _FUNCTIONS)
                is_body = is_body or (isinstance(node, ast.ClassDef) and part == "body")
                for index, item in enumerate(value):
                    if isinstance(item, ast.AST):
                        self._visit(item, in_class=is_body)
                    elif isinstance(item, str):
                        value[index] = self._name(item)

    def _visit_import(self, node: ast.Import | ast.ImportFrom) -> None:
        def path(dotted: str) -> str:
            parts = dotted.split(".")
            return ".".join(
                part if part in self.words.members else self.numbers.of(part, "g") for part in parts
            )

        if isinstance(node, ast.ImportFrom) and node.module:
            node.module = path(node.module)
        for alias in node.names:
            if alias.name == "*":
                continue
            local = alias.asname or alias.name
            alias.name = path(alias.name)
            if alias.asname or isinstance(node, ast.ImportFrom):
                new = self._name(local)
                alias.asname = None if new == alias.name else new
