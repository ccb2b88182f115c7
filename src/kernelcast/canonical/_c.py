r"""What of a C-family program counts: what its entry reaches, and which names are the author's.

There is no parser here, and none is needed: a program is cut into top-level items by its brackets,
an item is live if a live one mentions its name, and a name is the author's where the program
declares it. Wherever that reading of the tokens could be wrong, what was dropped or renamed is told
as a *doubt*: the forecaster is shown none of it, but the kernel's id covers it, so that two kernels
are never taken for one on the strength of a guess.
"""

from __future__ import annotations

import re
from bisect import bisect
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import compress
from typing import Any, Literal, NamedTuple

from kernelcast.canonical._lexer import IN_DIRECTIVE, Token, TokenKind, words

# ---- what the languages and their libraries call their own ---------------------------------------

_OPENCL_WORDS = words("kernel global local constant read_only write_only read_write")
_TYPE_WORDS = _OPENCL_WORDS | words(
    "auto bool char char8_t char16_t char32_t wchar_t double float half int long short signed "
    "unsigned void uchar ushort uint ulong const constexpr constinit consteval volatile mutable "
    "restrict __restrict __restrict__ register static inline extern thread_local typename "
    "__global__ __device__ __host__ __shared__ __constant__ __managed__ __forceinline__ "
    "__noinline__ __inline__ __inline __grid_constant__ __signed__ __complex__ __extension__ "
    "__kernel __global __local __private __constant __read_only __write_only"
)
_OTHER_WORDS = words(
    "alignas alignof and asm __asm __asm__ __volatile__ __attribute__ __declspec __align__ "
    "__launch_bounds__ __cluster_dims__ __maxnreg__ __typeof__ typeof break case catch class "
    "co_await co_return co_yield concept const_cast continue decltype default delete do "
    "dynamic_cast else enum explicit export false final for friend goto if import module namespace "
    "new noexcept not nullptr operator or override private protected public reinterpret_cast "
    "requires return sizeof static_assert _Static_assert static_cast struct switch template this "
    "throw true try typedef typeid union using virtual while xor _Pragma main"
)
_WORDS = _TYPE_WORDS | _OTHER_WORDS
_TYPE_KEYS = frozenset({"struct", "class", "union", "enum"})
# Before a name these make it no declaration: `return x`, `else f(x)`, `public Base`.
_BEFORE_NO_DECLARATION = _OTHER_WORDS - {"final", "explicit", "virtual"}
_ATTRIBUTES = words(
    "__attribute__ __attribute __declspec __launch_bounds__ __cluster_dims__ __maxnreg__ __align__ "
    "alignas decltype __typeof__ typeof noexcept asm __asm__ explicit requires "
    "reqd_work_group_size work_group_size_hint"
)
_KNOWN_TYPE = re.compile(
    r"(?:(?:u?(?:char|short|int|long|longlong)|float|double|half|bool)[1-9]\d?|\w+_t|dim3|Tensor"
    r"|string|(?:__)?(?:half2?|nv_bfloat162?|hip_bfloat16))\Z"
)
# What a doubtful declaration must not rename: names that every program in these languages knows.
_LIBRARY = re.compile(
    r"_[A-Z_]\w*\Z|(?:FLT|DBL|LDBL|INT|UINT|LONG|CHAR|SCHAR|SHRT|SIZE|CUDART|CL|M)_\w+\Z"
    r"|(?:U?INT\d+_M(?:AX|IN)|INFINITY|NAN|NULL|EOF|HUGE_VALF?|TORCH_\w+)\Z"
    r"|(?:cuda|cublas|cudnn|cusparse|cufft|curand|hip|hipblas|nccl|rocblas|miopen|omp|cl)_?[A-Z_]"
    r"|cu[A-Z]|(?:threadIdx|blockIdx|blockDim|gridDim|warpSize|std|at|torch|c10|nvcuda|wmma|cute"
    r"|cutlass|cub|thrust|size_t|min|max|abs|exp|log|pow|sqrt|fabs|floor|ceil)\Z"
)
# What authors overload: a call may mean the library's.
_OVERLOADED = re.compile(
    r"(?:atomic[A-Z]\w*|make_\w+|__\w+|(?:a?(?:sin|cos|tan)h?|exp|log|r?sqrt|pow|fma|fabs|abs|f?min"
    r"|f?max|floor|ceil|round|erf|norm|clamp|dot|length|cross|lerp)\w?\d*|swap|size|get|copy)\Z"
)
# Members of library types: an author's field of the same name does not rename these.
_LIBRARY_MEMBER = re.compile(
    r"(?:[xyzw]|s[0-9a-f]|lo|hi|even|odd|size|sizes|data|data_ptr|dtype|device|options|begin|end"
    r"|stream|numel|dim|stride|strides|scalar_type|defined|contiguous|is_contiguous|is_cuda|type"
    r"|item|to|def|push_back|resize|first|second|value|index|get|c_str|str|length|count|empty)\Z"
)
_MACROS_THAT_DECLARE = frozenset(
    {"PYBIND11_MODULE", "TORCH_LIBRARY", "TORCH_LIBRARY_IMPL", "TORCH_LIBRARY_FRAGMENT"}
)
# Whose text is only ever read by a person.
_TELLERS = re.compile(
    r"(?:static_assert|_Static_assert|TORCH_CHECK\w*|TORCH_INTERNAL_ASSERT\w*|TORCH_WARN\w*|assert"
    r"|AT_(?:ASSERT|ERROR|DISPATCH)\w*|runtime_error|invalid_argument|logic_error|out_of_range"
    r"|printf|fprintf|puts|fputs|perror|def)\Z"
)
# What compilers act upon; they pass over every other pragma, which is then only words.
_PRAGMAS = words(
    "omp acc unroll nounroll GCC clang nv nv_diag_suppress nv_diag_default nv_diagnostic once STDC "
    "kernelcast OPENCL hip pack diag_suppress ivdep vector simd loop"
)
_SILENT_PRAGMA = re.compile(r"#pragma (?:GCC |clang )?(?:message|warning|region|endregion)\b")
_RESERVED_MACRO = re.compile(
    r"(?:_\w+|(?:USE|WITH|CUDA|CUDART|HIP|TORCH|CUTLASS|CUTE|NV|AT|C10)_\w+|NDEBUG|defined)\Z"
)

_DIRECTIVE = re.compile(r"#\s*(\w*)\s*(.*)", re.DOTALL)
_DEFINE = re.compile(r"#define ([^\s(]+)(\([^)]*\))?", re.DOTALL)
_NUMBERED = re.compile(r"#define \w+ [-+\w.]*\d[-+\w.]*\Z")
_DEFINED = re.compile(r"\bdefined\s*\(?\s*(\w+)")
_CONDITIONALS = frozenset({"if", "ifdef", "ifndef"})
_ALTERNATIVES = frozenset({"else", "elif", "elifdef", "elifndef"})
_CONSTANT_CONDITIONS = frozenset({"#if 0", "#if false", "#if 1", "#if true"})
_ASKS_ONLY = frozenset({"ifdef", "ifndef", "elifdef", "elifndef", "undef"})
_WORD = re.compile(r"[^\W\d]\w*")
_DIGRAPHS = {"<%": "{", "%>": "}", "<:": "[", ":>": "]"}
_HASH = frozenset({"#", "%:"})
_CLOSING = {"(": ")", "[": "]", "{": "}"}
_MAY_DO_NOTHING = frozenset({"0", "false", ";"})
_ANCHORS = frozenset({"case", "default", "asm", "__asm__", ":"})
_BOUNDARIES = frozenset({";", "{", "}"})
_POINTERS = frozenset({"*", "&", "&&"})
_QUALIFIERS = frozenset({"const", "volatile", "restrict", "__restrict", "__restrict__"})
_AFTER_DECLARED = frozenset({"=", ";", ",", ")", "[", "(", "{", "}", ":", ">", ">>", "...", ""})
_BEFORE_TYPE = frozenset({"", ";", "{", "}", "(", ",", "<", ">", ">>", ":", "["}) | _TYPE_WORDS
_INTERNAL = frozenset({"static", "inline", "__device__", "constexpr", "__forceinline__"})
_TEXT_TYPES = frozenset(
    {"*", "&", "::", "[", "]", "std", "string", "string_view", "maybe_unused", "unused", "gnu"}
)
_LITERALS = frozenset({"string", "number", "character"})
_STANDS_IN = "\ue000"  # in a name that is not all there: see C++ in f-strings
_CANONICAL = re.compile(r"[efgmMPTv]\d+\Z")
_EVERYWHERE = -1_000_000_000

_LONGEST_ARGUMENTS = 500
_MOST_ROUNDS = 8  # what goes can leave more unused; a chain of that made on purpose may stay

_Opened = tuple[int, Any] | None
"""The innermost open bracket and those around it."""
_Level = Literal["global", "field", "local"]
_ItemKind = Literal[
    "function", "prototype", "type", "variable", "open", "close", "directive", "empty", "other"
]


class _Declared(NamedTuple):
    name: str
    item: int
    level: _Level
    certain: bool
    is_type: bool


@dataclass(slots=True)
class _Item:
    """What stands between two boundaries at the top level; its names make it live when mentioned.

    `name` is where a function's name stands. A namespace is two items, `open` and `close`.
    """

    start: int
    stop: int
    kind: _ItemKind
    name: int = -1
    names: set[str] = field(default_factory=set)
    live: bool = False


@dataclass(frozen=True)
class Reduced:
    """Canonical tokens of each source, what exported functions are now called, and the doubts."""

    sources: tuple[tuple[tuple[TokenKind, str], ...], ...]
    exported: dict[str, str]
    doubts: frozenset[str]


def reduce_c(
    sources: Sequence[Sequence[Token]],
    entry: str | None = None,
    wanted: Collection[str] = (),
) -> Reduced:
    """The live part of one program, under canonical names.

    `entry` is the function that is called; it keeps its name. For a program inside another
    language, `wanted` holds the words by which it may be called: functions so named are the
    entries, and are renamed with the rest. Where neither is found, everything with external linkage
    is an entry and keeps its name.
    """
    programs = [_Program(each) for each in sources]
    called = {str(entry)} if any(entry in each.functions for each in programs) else set()
    labels = {label for each in programs for label in each.labels}
    exported: set[str] = set()
    if not called:
        # What the outside calls by name, and what one source calls in another.
        asked = {name for each in programs for name in each.prototypes - each.functions}
        reachable = {name for each in programs for name in each.functions - each.internal}
        called = reachable & {*wanted, *asked}
        exported = called | (labels & {*wanted})
    names: dict[str, str] = {}
    for each in programs:
        each.entries, each.exported, each.export_names = called, exported, names
        each.is_closed = bool(called or labels)
        each.kept |= called - exported
        each.reduce()
    return Reduced(
        tuple(each.remaining() for each in programs),
        {name: names[name] for name in sorted(exported & names.keys())},
        frozenset(exported.union(*(each.doubts for each in programs)) - {""}),
    )


class _Program:
    """The tokens of one source in a row; `alive` says which of them remain."""

    def __init__(self, source: Sequence[Token]) -> None:
        self.kinds: list[TokenKind] = []
        self.texts: list[str] = []
        self.partner: list[int] = []
        self.directives: list[int] = []
        self.strings: list[int] = []
        self.items: list[_Item] = []
        self.macros: dict[str, list[int]] = {}
        self.needed_macros: set[int] = set()
        self.declared: list[_Declared] = []
        self.types: set[str] = set()
        self.in_namespace = 0
        self.home_of_pragma: dict[int, int] = {}
        self.seen_everywhere: Collection[str] = ()
        self.doubts: set[str] = set()
        self.is_structured = True
        # Garbage with a stray # stays as it is: it could come to stand first on its line.
        vocabulary = {text for _, text in source}
        is_garbage = not _HASH.isdisjoint(vocabulary) and any(
            kind == "punctuator" and text in _HASH for kind, text in source
        )
        if not is_garbage and not _CONSTANT_CONDITIONS.isdisjoint(vocabulary):
            source = _without_disabled(source)
        if not _DIGRAPHS.keys().isdisjoint(vocabulary):
            source = [Token(kind, _DIGRAPHS.get(text, text)) for kind, text in source]
        self._read(source, is_garbage=is_garbage)
        self.alive = bytearray(b"\1") * len(self.texts)

        self.functions = {self.texts[each.name] for each in self.items if each.kind == "function"}
        if not self.is_structured:
            self.functions |= {text for text in self.texts if text not in _WORDS}
        self.prototypes = {self.texts[each.name] for each in self.items if each.kind == "prototype"}
        self.internal = {
            self.texts[each.name]
            for each in self.items
            if each.kind == "function" and self._is_internal(self.texts[each.start : each.name])
        }
        self.labels = {self.texts[at][1:-1] for at in self.strings if self._is_label(at)}
        """What `m.def("name", &f)` calls a function to the outside."""
        self.entries: set[str] = set()
        self.exported: set[str] = set()
        """Names that the outside follows when they change; the names given are shared."""
        self.export_names: dict[str, str] = {}
        self.is_closed = False
        """Whether what is not an entry can only be reached from inside."""
        self.kept = {text for text in self.texts if _STANDS_IN in text}

    def reduce(self) -> None:
        """Drop what does not count and name what does."""
        if self.is_structured:
            self._drop_statements_without_effect()
        self._find_declarations()
        self._drop_unreached()
        self._blank_messages()
        self._rename()

    def remaining(self) -> tuple[tuple[TokenKind, str], ...]:
        """The tokens that are left."""
        return tuple(compress(zip(self.kinds, self.texts, strict=True), self.alive))

    def _is_label(self, string: int) -> bool:
        return self.texts[string - 2 : string] == ["def", "("]

    # ---- structure -------------------------------------------------------------------------------

    def _read(self, lexed: Sequence[Token], *, is_garbage: bool) -> None:
        start = 0
        self.kinds += [kind for kind, _ in lexed]
        self.texts += [text for _, text in lexed]
        stop = len(self.texts)
        directives = [at for at in range(start, stop) if self.kinds[at] == "directive"]
        for at in directives:
            if found := _DEFINE.match(self.texts[at]):
                self.macros.setdefault(found[1], []).append(at)
        self.directives += directives
        self.strings += [at for at in range(start, stop) if self.kinds[at] == "string"]
        self.partner += [-1] * (stop - start)
        if not is_garbage and self._match_brackets(start, stop):
            self._split(start, stop)
        elif start < stop:
            self.items.append(_Item(start, stop, "other"))
            self.is_structured = False

    def _match_brackets(self, start: int, stop: int) -> bool:
        """Find the partner of each bracket; False if they do not fit.

        Each branch of a conditional goes on from what was open before it; if each opens as much,
        what closes one closes all.
        """
        texts, kinds, partner = self.texts, self.kinds, self.partner
        opened: _Opened = None
        twins: dict[int, list[int]] = {}
        conditionals: list[tuple[_Opened, list[_Opened]]] = []
        for at in range(start, stop):
            text = texts[at]
            if text in _CLOSING:
                opened = (at, opened)
            elif text in (")", "]", "}"):
                if opened is None or _CLOSING[texts[opened[0]]] != text:
                    return False
                closed = [opened[0]]
                while closed:
                    partner[at] = closed.pop()
                    partner[partner[at]] = at
                    closed += twins.pop(partner[at], ())
                partner[at], opened = opened
            elif kinds[at] == "directive":
                word = _word_of_directive(text)
                if word in _CONDITIONALS:
                    conditionals.append((opened, []))
                elif word in _ALTERNATIVES and conditionals:
                    conditionals[-1][1].append(opened)
                    opened = conditionals[-1][0]
                elif word == "endif" and conditionals:
                    for other in conditionals.pop()[1]:
                        mine: _Opened = opened
                        while other is not mine:
                            if other is None or mine is None or texts[other[0]] != texts[mine[0]]:
                                return False
                            twins.setdefault(mine[0], []).append(other[0])
                            other, mine = other[1], mine[1]
        return opened is None

    def _split(self, start: int, stop: int) -> None:
        texts, partner, items = self.texts, self.partner, self.items
        at = first = start
        while at < stop:
            text = texts[at]
            if self.kinds[at] == "directive":
                if at == first:
                    items.append(_Item(at, at + 1, "directive"))
                    first = at + 1
            elif text == "(" or text == "[":
                at = partner[at]
            elif text == "{" and self._opens_container(first, at):
                items.append(_Item(first, at + 1, "open"))
                first = at + 1
            elif text == "{":
                end = partner[at]
                kind, name = self._head(first, at)
                if kind in ("function", "other"):
                    items.append(_Item(first, end + 1, kind, name))
                    first = end + 1
                at = end
            elif text == "}":
                if first < at:
                    items.append(_Item(first, at, "other"))
                items.append(_Item(at, at + 1, "close"))
                first = at + 1
            elif text == ";":
                items.append(self._statement(first, at + 1))
                first = at + 1
            at += 1
        if first < stop:
            items.append(_Item(first, stop, "other"))

    def _opens_container(self, first: int, brace: int) -> bool:
        word, second = self.texts[first], self.texts[first + 1]
        if word == "extern":
            return first + 2 == brace and self.kinds[first + 1] == "string"
        return word == "namespace" or (word == "inline" and second == "namespace")

    def _after_template(self, at: int, stop: int) -> int:
        """Behind the template headers that an item starts with."""
        texts = self.texts
        while at + 1 < stop and texts[at] == "template" and texts[at + 1] == "<":
            depth = 0
            at += 1
            while at < stop:
                text = texts[at]
                if text == "<":
                    depth += 1
                elif text[0] == ">":
                    depth -= text.count(">")
                elif text == "(" and self.partner[at] > 0:
                    at = self.partner[at]
                at += 1
                if depth <= 0:
                    break
        return at

    def _head(self, first: int, stop: int) -> tuple[_ItemKind, int]:
        """What the body or semicolon behind a head belongs to, and where its name stands."""
        texts = self.texts
        start = at = self._after_template(first, stop)
        name = -1
        has_type_key = False
        while at < stop:
            text = texts[at]
            if text == "operator":
                return "other", -1
            if text == "=":
                return "variable", -1
            if text in _TYPE_KEYS:
                has_type_key = True
            elif text in _CLOSING:
                if text == "(" and name < 0 and at > start:
                    is_name = self.kinds[at - 1] == "identifier"
                    if is_name and not self._is_attribute(texts[at - 1]):
                        name = at - 1
                at = self.partner[at]
            at += 1
        if name < 0:
            return ("type" if has_type_key else "variable"), -1
        # Without a type before it, it is a macro such as PYBIND11_MODULE.
        return ("function", name) if name > start else ("other", -1)

    @staticmethod
    def _is_attribute(word: str) -> bool:
        return word in _ATTRIBUTES or "LAUNCH_BOUNDS" in word

    def _statement(self, first: int, stop: int) -> _Item:
        texts = self.texts
        if stop - first == 1:
            return _Item(first, stop, "empty")
        start = self._after_template(first, stop)
        word = texts[start]
        if word in ("static_assert", "_Static_assert", "asm", "__asm__"):
            return _Item(first, stop, "other")
        if word == "typedef" or (word == "using" and "=" in texts[start:stop]):
            return _Item(first, stop, "type")
        if word == "using":
            return _Item(first, stop, "other")
        kind, name = self._head(first, stop)
        if kind == "function":
            is_prototype = self._takes_parameters(name + 1)
            return _Item(first, stop, *(("prototype", name) if is_prototype else ("variable",)))
        return _Item(first, stop, kind)

    def _takes_parameters(self, opening: int) -> bool:
        """Whether parentheses hold parameters, not arguments of a constructor."""
        first, second = self.texts[opening + 1 : opening + 3]
        if first == ")" or first in _TYPE_WORDS:
            return True
        kinds = self.kinds[opening + 1 : opening + 3]
        return kinds[0] == "identifier" and (
            kinds[1] == "identifier" or second in ("*", "&", "::", "<", "...")
        )

    # ---- code that does nothing ------------------------------------------------------------------

    def _drop(self, start: int, stop: int) -> None:
        dropped = [at for at in range(start, stop) if self.alive[at]]
        self.doubts.add(" ".join([self.texts[at] for at in dropped]))
        for at in dropped:
            self.alive[at] = 0

    def _starts_statement(self, at: int) -> bool:
        return at == 0 or self.texts[at - 1] in _BOUNDARIES or self.kinds[at - 1] == "directive"

    def _drop_statements_without_effect(self) -> None:
        """`"words";`, `(void)x;` and what `if (0)` and `while (false)` guard."""
        texts, kinds, partner = self.texts, self.kinds, self.partner
        anchors: list[int] | None = None
        for at in [at for at, text in enumerate(texts) if text in _MAY_DO_NOTHING]:
            text = texts[at]
            if text != ";" and texts[at - 1 : at + 3 : 2] == ["(", ")"]:
                if anchors is None:
                    # Into a block with one of these something outside can jump.
                    anchors = [
                        place
                        for place, text in enumerate(texts)
                        if text in _ANCHORS or kinds[place] == "directive"
                    ]
                key, body = at - 2, at + 2
                end = partner[body] if body < len(texts) and texts[body] == "{" else -1
                if end < 0 or key < 0 or bisect(anchors, body) != bisect(anchors, end):
                    continue
                has_else = texts[end + 1 : end + 2] == ["else"]
                if texts[key] == "if" and (has_else or self._starts_statement(key)):
                    self._drop(key, end + 1 + has_else)
                elif texts[key] == "while" and self._starts_statement(key) and not has_else:
                    self._drop(key, end + 1)
            elif text == ";" and at:
                start = at
                while start > 0 and kinds[start - 1] == "string":
                    start -= 1
                if start == at:
                    if kinds[at - 1] != "identifier" or texts[at - 2 : at - 1] != [")"]:
                        continue
                    start -= 1
                if texts[max(start - 3, 0) : start] == ["(", "void", ")"]:
                    start -= 3
                elif kinds[start] != "string":
                    continue
                if self._starts_statement(start):
                    self._drop(start, at + 1)

    def _drop_unused_texts(self) -> bool:
        """Variables that hold text and are mentioned once: where they are declared."""
        texts, kinds, alive = self.texts, self.kinds, self.alive
        found = [each for at in self.strings if alive[at] and (each := self._text_variable(at))]
        if not found:
            return False
        mentions: dict[str, int] = {}
        for at, text in enumerate(texts):
            if alive[at]:
                for word in _WORD.findall(text) if kinds[at] == "directive" else (text,):
                    mentions[word] = mentions.get(word, 0) + 1
        open_to_all = {
            each.start
            for each in self.items
            if each.kind == "variable" and each.live and not self.is_closed
            if not self._is_internal(texts[each.start : each.stop], constant=True)
        }
        unused = [
            each for each in found if mentions[texts[each[2]]] == 1 and each[0] not in open_to_all
        ]
        for start, stop, _ in unused:
            self._drop(start, stop)
        return bool(unused)

    def _text_variable(self, string: int) -> tuple[int, int, int] | None:
        """Start, end and name of a declaration whose first text this is, among literals alone."""
        texts, kinds = self.texts, self.kinds
        name = string - 1
        while name > 0 and texts[name] in ("{", "(", "="):
            name -= 1
        if name == string - 1:
            return None
        while name > 0 and texts[name] == "]" and self.partner[name] > 0:
            name = self.partner[name] - 1
        start = name
        while start > 0 and (texts[start - 1] in _TYPE_WORDS or texts[start - 1] in _TEXT_TYPES):
            start -= 1
        is_declaration = kinds[name] == "identifier" and texts[name] not in _WORDS and start < name
        if not is_declaration or not self._starts_statement(start):
            return None
        stop = string
        while stop < len(texts) and (
            kinds[stop] in _LITERALS or texts[stop] in ("{", "}", ",", ")")
        ):
            stop += 1
        return (start, stop + 1, name) if texts[stop : stop + 1] == [";"] else None

    # ---- reachability ----------------------------------------------------------------------------

    def _drop_unreached(self) -> None:
        """Drop the items and macros that no live one mentions, and what is empty without them."""
        by_name: dict[str, list[_Item]] = {}
        for item in self.items:
            for name in item.names:
                by_name.setdefault(name, []).append(item)
        for _ in range(_MOST_ROUNDS):
            self._reach(by_name)
            for item in self.items:
                if not item.live and 1 in self.alive[item.start : item.stop]:
                    start = item.start
                    for macro in sorted(self.needed_macros & set(range(start, item.stop))):
                        self._drop(start, macro)
                        start = macro + 1
                    self._drop(start, item.stop)
            if not self.is_structured:
                return
            if not self._drop_empty_groups() | self._drop_unused_texts():
                return

    def _reach(self, by_name: dict[str, list[_Item]]) -> None:
        texts, alive = self.texts, self.alive
        spoken = {word for at in self.strings if alive[at] for word in _WORD.findall(texts[at])}
        mentioned: set[str] = set()
        asked: set[str] = set()
        todo: list[str] = []

        owners = {*by_name, *(each.name for each in self.declared if each.is_type)}

        def visit(item: _Item) -> None:
            item.live = True
            for at in range(item.start, item.stop):
                text = texts[at]
                if text in by_name or text in self.macros:
                    # `std::min` is not the author's.
                    is_foreign = at > 1 and texts[at - 1] == "::" and texts[at - 2] not in owners
                    if alive[at] and not (is_foreign and self.kinds[at - 2] == "identifier"):
                        todo.append(text)
                elif text[0] == "#" and alive[at] and not text.startswith("#define "):
                    needs, asks = _words_of_directive(text)
                    todo.extend(needs)
                    asked.update(asks)

        for item in self.items:
            item.live = False
        for item in self.items:
            if 1 in alive[item.start : item.stop] and self._is_root(item, spoken):
                visit(item)
        while todo:
            word = todo.pop()
            if word in mentioned:
                continue
            mentioned.add(word)
            for item in by_name.get(word, ()):
                if not item.live and 1 in alive[item.start : item.stop]:
                    visit(item)
            for at in self.macros.get(word, ()):
                if alive[at]:
                    todo.extend(_WORD.findall(texts[at]))
        self._drop_macros(mentioned, asked)

    def _drop_macros(self, mentioned: set[str], asked: set[str]) -> None:
        includes = [at for at in self.directives if self.texts[at].startswith("#include")]
        last_include = includes[-1] if includes else -1
        self.needed_macros = set()
        for name, places in self.macros.items():
            for at in places:
                if name in mentioned:
                    self.needed_macros.add(at)
                elif name in asked:
                    self.texts[at] = f"#define {name}"
                    self.needed_macros.add(at)
                elif self.alive[at]:
                    self.alive[at] = 0
                    # A header may read it; and a number may be a tuner's, for code beside this one.
                    if at < last_include or _NUMBERED.match(self.texts[at]):
                        self.doubts.add(self.texts[at])
        self.needed_macros = {at for at in self.needed_macros if self.alive[at]}

    def _is_root(self, item: _Item, spoken: set[str]) -> bool:
        texts = self.texts
        part = texts[item.start : item.stop]
        match item.kind:
            case "function":
                if item.names & self.entries or item.names & spoken:
                    return True
                head = part[: item.name - item.start]
                if not self.is_closed and not self._is_internal(head):
                    return True
                return bool({"constructor", "destructor", "used"} & set(head)) or not _nests(part)
            case "variable":
                calls = (
                    text == "(" and texts[at - 1] != "(" and not self._is_attribute(texts[at - 1])
                    for at, text in enumerate(part, item.start)
                )
                is_seen = not self.is_closed and not self._is_internal(part, constant=True)
                return not item.names or is_seen or any(calls) or not _nests(part)
            case "type" | "prototype":
                is_asked = item.kind == "prototype" and bool(item.names & self.exported)
                return is_asked or not item.names or not _nests(part)
            case "empty":
                return False
            case "directive":
                return not part[0].startswith("#define ")
            case _:
                return True

    def _is_internal(self, head: Iterable[str], *, constant: bool = False) -> bool:
        """Whether nothing outside can call or read what a head declares."""
        said = set(head)
        for macro in said & self.macros.keys():
            said.update(*(_WORD.findall(self.texts[at]) for at in self.macros[macro]))
        if constant and "const" in said and not said & {"*", "__constant__", "extern"}:
            return True
        return "template" in said or bool(said & _INTERNAL)

    def _drop_empty_groups(self) -> bool:
        """Namespaces and conditionals that hold nothing any more."""
        bounds: dict[int, tuple[str, int]] = {
            each.start: (each.kind, each.stop)
            for each in self.items
            if each.kind in ("open", "close")
        }
        asked: Counter[str] = Counter()
        for at in self.directives:
            bounds[at] = (_word_of_directive(self.texts[at]), at + 1)
            if self.alive[at] and bounds[at][0] != "define":
                asked.update(_words_of_directive(self.texts[at])[1])
        changed = False
        # Of each group, the places that make it one, as long as nothing stands between them.
        opened: list[list[tuple[int, int]]] = []
        behind = 0
        for at, (word, stop) in sorted(bounds.items()):
            if not self.alive[at]:
                continue
            if self.alive.find(1, behind, at) >= 0:
                opened.clear()
            behind = stop
            if word in _CONDITIONALS or word == "open":
                opened.append([(at, stop)])
            elif word in _ALTERNATIVES and opened:
                opened[-1].append((at, stop))
            elif word == "define" and opened and asked[self.texts[at].partition(" ")[2]] == 1:
                opened[-1].append((at, stop))  # only to be asked for once: `#ifndef A`
            elif word in ("endif", "close") and opened:
                for start, end in (*opened.pop(), (at, stop)):
                    self._drop(start, end)
                changed = True
            else:
                opened.clear()
        return changed

    # ---- declarations ----------------------------------------------------------------------------

    def _find_declarations(self) -> None:
        """Every name that an item declares, where it is seen, and whether it surely is one."""
        self.in_namespace = 0
        for number, item in enumerate(self.items):
            if item.kind not in ("directive", "close", "empty"):
                self._declare(number, item)
            self.in_namespace += (item.kind == "open") - (item.kind == "close")

    def _declare(self, number: int, item: _Item) -> None:
        texts, kinds, macros = self.texts, self.kinds, self.macros
        start, stop = item.start, item.stop
        body = self._after_template(start, stop)
        signature_end = self.partner[item.name + 1] if item.name >= 0 else -1
        is_typedef = texts[body] == "typedef" if body < stop else False
        # A frame is what the innermost bracket holds, `seen` from where its names are; `pending`
        # says that a declaration is going on in it (and whether surely), `key` that a type's body
        # is next.
        frame, key = "top", ""
        seen: _Level = "global"
        pending: bool | None = None
        outer: list[tuple[str, bool | None, str, _Level]] = []
        expects = False  # a further declarator, behind a comma

        def found(at: int, *, certain: bool, is_type: bool = is_typedef) -> None:
            name = texts[at]
            if not certain and _LIBRARY.match(name):
                return
            level = seen if at >= body else "local"
            if level == "global":
                item.names.add(name)
            # A library may look for members, and for names in its own namespace, as they are.
            certain = certain and level != "field" and not (level == "global" and self.in_namespace)
            self.declared.append(_Declared(name, number, level, certain, is_type))
            if is_type:
                self.types.add(name)

        if item.kind == "open":
            name = texts[stop - 2]
            if kinds[stop - 2] == "identifier" and name != "namespace" and not _LIBRARY.match(name):
                self.declared.append(_Declared(name, number, "global", certain=False, is_type=True))
            return
        if item.name >= 0:
            owner = item.name
            while owner - 2 > start and texts[owner - 1] == "::":
                owner -= 2
            item.names.add(texts[owner])
            if owner == item.name:
                name = texts[owner]
                is_sure = not _OVERLOADED.match(name) and not self.in_namespace
                self.declared.append(_Declared(name, number, "global", is_sure, is_type=False))

        for at in range(start, stop):
            text = texts[at]
            kind = kinds[at]
            before = texts[at - 1] if at > start else ""
            if kind == "punctuator":
                if text == ",":
                    expects = pending is not None and frame in ("top", "class", "block", "for")
                elif text == ";":
                    pending, key, expects = None, "", False
                elif text in _CLOSING:
                    outer.append((frame, pending, key, seen))
                    frame = self._frame(at, before, key, declares=pending is not None)
                    if frame != "enum":
                        seen = "field" if frame == "class" else "local"
                    pending, key, expects = None, "", False
                elif text in (")", "]", "}"):
                    closed = frame
                    if outer:
                        frame, pending, key, seen = outer.pop()
                    if closed == "block":
                        pending, key = None, ""
                    elif closed in ("class", "enum"):
                        pending, key = True, ""  # `struct A {...} a, *b;`
                    expects = closed in ("class", "enum")
                elif text not in _POINTERS:
                    expects = False
                continue
            if kind != "identifier":
                expects = expects and kind == "directive"
                continue
            if text in _WORDS and not (text in _OPENCL_WORDS and self._is_plain_name(at, start)):
                if text in _TYPE_KEYS and before not in ("<", ",") and key != "enum":
                    key = "enum" if text == "enum" else "class"
                expects = expects and text in _TYPE_WORDS
                continue
            after = texts[at + 1] if at + 1 < stop else ""
            if at == item.name or not (
                after in _AFTER_DECLARED or after in _ATTRIBUTES or after == "final"
            ):
                expects = False
                continue
            if before and kinds[at - 1] == "identifier":
                if before in _TYPE_KEYS or before == "typename":
                    if (
                        after in ("{", ":", "final", ";")
                        if before != "typename" and at >= body
                        else after in (",", ">", "=", ">>")
                    ):
                        found(at, certain=True, is_type=True)
                elif before in ("using", "namespace", "concept"):
                    if after == "=" or (before == "namespace" and after == "{"):
                        found(at, certain=True, is_type=True)
                elif before not in _BEFORE_NO_DECLARATION:
                    pending = before not in macros
                    found(at, certain=pending)
            elif before in _POINTERS:
                surely = self._declares_behind_pointer(at, start)
                if surely is None and expects:
                    surely = pending
                if surely is not None:
                    found(at, certain=surely)
                    pending = surely
            elif before[:1] == ">" and before[-1] == ">":
                if self._closes_type(at - 1, start):
                    found(at, certain=True)
                    pending = True
            elif before == ")":
                if self._ends_attribute(at - 1):
                    found(at, certain=True)
                    pending = True
            elif expects and before in (",", "}"):
                found(at, certain=bool(pending))
            elif before == "," and after in (",", ")") and item.name < at < signature_end:
                # `f(int a, b)` does not compile, and names what it was to take all the same.
                if text not in self.types and not _KNOWN_TYPE.match(text):
                    found(at, certain=False)
            elif frame == "enum":
                if before in ("{", ",") and after in (",", "=", "}"):
                    found(at, certain=True)
            elif frame == "binding" and before in ("[", ","):
                found(at, certain=True)
            elif (before == "..." and after in (",", ")", ">", ">>")) or (
                before in _BOUNDARIES and after == ":" and frame == "block"
            ):
                found(at, certain=True)  # a pack, a label
            elif (frame == "macro" and before in ("(", ",") and after in (",", ")")) or (
                before == "[" and after == "="
            ):
                found(at, certain=False)  # a macro's argument, a lambda's name for a capture
            expects = False

    def _frame(self, at: int, before: str, key: str, *, declares: bool) -> str:
        """What the bracket at this place opens."""
        text = self.texts[at]
        if text == "[":
            is_binding = before == "auto" or (
                before in _POINTERS and self.texts[at - 2 : at - 1] == ["auto"]
            )
            return "binding" if is_binding else "bracket"
        if text == "(":
            if before in _MACROS_THAT_DECLARE:
                return "macro"
            if before in self.macros and (self.is_closed or not self._pastes(before)):
                return "macro"
            return "for" if before == "for" else "parentheses"
        if key and (before != ")" or self._ends_attribute(at - 1)):
            return key
        if before in (
            ")",
            "const",
            "noexcept",
            "override",
            "else",
            "do",
            "try",
            ";",
            "}",
            "mutable",
        ):
            return "block"
        is_value = declares or before in ("=", ",", "(", "return", "[", "]", ">")
        return "values" if is_value else "block"

    def _pastes(self, macro: str) -> bool:
        """Whether a macro may make names out of its arguments, for the outside to know."""
        return any("##" in self.texts[at] for at in self.macros[macro])

    def _is_plain_name(self, at: int, start: int) -> bool:
        """Whether a word of OpenCL's is a name here, as in `int global;`."""
        return at > start and self.texts[at + 1 : at + 2] in (
            [";"],
            ["="],
            [","],
            [")"],
            ["["],
            ["("],
        )

    def _declares_behind_pointer(self, at: int, start: int) -> bool | None:
        """Of `T * name`: whether it surely is a declaration; None if it is a product."""
        texts, kinds = self.texts, self.kinds
        base = at - 1
        while base > start and (texts[base] in _POINTERS or texts[base] in _QUALIFIERS):
            base -= 1
        word = texts[base]
        if word[0] == ">" and word[-1] == ">":
            return True if self._closes_type(base, start) else None
        if word == "(" and texts[at + 1] == ")" and texts[at + 2 : at + 3] in (["("], ["["]):
            return False if base > start and kinds[base - 1] == "identifier" else None
        if word == "::":
            return True  # a pointer to a member
        if kinds[base] != "identifier" or word in _OTHER_WORDS:
            return None
        if word in _TYPE_WORDS and word not in _OPENCL_WORDS:
            return True
        while base - 2 >= start and texts[base - 1] == "::":
            base -= 2
        before = texts[base - 1] if base > start else ""
        if before not in _BEFORE_TYPE:
            is_behind_word = base > start and kinds[base - 1] == "identifier"
            return False if is_behind_word and before not in _OTHER_WORDS else None
        is_type = before in _TYPE_WORDS or word in self.types
        return is_type or bool(_KNOWN_TYPE.match(word))

    def _closes_type(self, at: int, start: int) -> bool:
        """Whether the `>` here closes template arguments that stand behind a type's name."""
        texts, kinds = self.texts, self.kinds
        depth = 0
        for back in range(at, max(start, at - 120), -1):
            text = texts[back]
            if text[0] == ">" and text[-1] == ">":
                depth += len(text)
            elif text == "<":
                depth -= 1
                if depth == 0:
                    return kinds[back - 1] == "identifier" and texts[back - 1] != "template"
            elif text in (";", "}", "&&", "||", "=", "<<<", "?"):
                return False
        return False

    def _ends_attribute(self, closing: int) -> bool:
        opening = self.partner[closing]
        return opening > 0 and self._is_attribute(self.texts[opening - 1])

    # ---- what remains ----------------------------------------------------------------------------

    def _blank_messages(self) -> None:
        """Empty the texts of assertions, exceptions and prints."""
        texts, kinds, partner = self.texts, self.kinds, self.partner
        vocabulary = set(texts)
        if not self.strings or not ("<<" in vocabulary or any(map(_TELLERS.match, vocabulary))):
            return
        for at, text in enumerate(texts):
            if text == "(" and at and kinds[at - 1] == "identifier" and partner[at] > 0:
                if _TELLERS.match(texts[at - 1]):
                    inside = at + 1 + self._is_label(at + 1)
                    while inside < partner[at]:
                        if kinds[inside] == "string":
                            texts[inside] = '""'
                        elif texts[inside] == "{":  # a lambda, with code of its own
                            inside = partner[inside]
                        inside += 1
            elif text == "<<":
                for beside in (at - 1, at + 1):
                    if 0 <= beside < len(texts) and kinds[beside] == "string":
                        self.doubts.add(texts[beside])  # it may be a source that is put together
                        texts[beside] = '""'

    def _rename(self) -> None:
        """What is left, with the author's names replaced by numbers in the order they come."""
        texts, kinds, alive = self.texts, self.kinds, self.alive
        for item in self.items:
            item.live = 1 in alive[item.start : item.stop]
        live = [each for each in self.items if each.live]
        self._keep_foreign(live)
        everywhere: dict[str, bool] = {}
        within: dict[int, dict[str, bool]] = {}
        anywhere: set[str] = set()
        fields: set[str] = set()
        field_places: set[tuple[str, int]] = set()
        types: set[str] = set()
        shielded = {
            (each.name, each.item)
            for each in self.declared
            if each.level == "field" and _LIBRARY_MEMBER.match(each.name)
        }
        for name, number, level, certain, is_type in self.declared:
            is_kept = name in self.kept or (name, number) in shielded
            if is_kept or not self.items[number].live:
                continue
            table = everywhere if level == "global" else within.setdefault(number, {})
            table[name] = table.get(name, False) or certain
            anywhere.add(name)
            if level == "field":
                fields.add(name)
                field_places.add((name, number))
            if is_type:
                types.add(name)
        functions = {
            texts[each.name] for each in live if each.name > 0 and texts[each.name - 1] != "::"
        }
        macros = {name for name, places in self.macros.items() if any(alive[at] for at in places)}
        macros -= self.kept
        everywhere.update(dict.fromkeys(macros, True))
        asked = self._asked_macros() - macros - everywhere.keys()
        everywhere.update(dict.fromkeys(asked, False))
        in_macros = {
            name for at in self.directives if alive[at] for name in _declared_in(texts[at])
        }
        anywhere |= macros | asked | in_macros
        self.seen_everywhere = everywhere.keys()

        # Another function's names: this one does not compile, or a library means something else.
        strangers = {each for each in anywhere - types if not _LIBRARY.match(each)}
        self._doubt_arguments_made_text()
        chosen: dict[int, int] = {}
        for number, item in enumerate(self.items):
            if not item.live:
                continue
            mine = within.get(number, {})
            is_member = item.name > 1 and texts[item.name - 1] == "::"
            for at in range(item.start, item.stop):
                text = texts[at]
                if kinds[at] != "identifier" or not alive[at]:
                    if kinds[at] == "directive":
                        self.home_of_pragma[at] = number
                    continue
                if text in mine:
                    certain = mine[text]
                elif text in everywhere:
                    certain = everywhere[text]
                elif text in fields or (
                    text in strangers and texts[at + 1 : at + 2] not in (["("], ["::"], ["<"])
                ):
                    certain = False
                else:
                    continue
                before = texts[at - 1] if at > item.start else ""
                if before in (".", "->"):
                    if text not in fields or _LIBRARY_MEMBER.match(text):
                        continue
                    certain = False
                elif before == "::" and at - 2 >= item.start and kinds[at - 2] == "identifier":
                    owner = texts[at - 2]
                    if owner not in everywhere and owner not in mine:
                        continue
                    certain = certain and owner in everywhere
                elif text in fields and not (text in mine or text in everywhere or is_member):
                    continue
                if text in mine and texts[at + 1 : at + 2] == ["("]:
                    # Unless it is declared just here, a library's function may be meant: the block
                    # that the name is declared in can be another one.
                    is_declared = at > item.start and kinds[at - 1] == "identifier"
                    certain = certain and is_declared and before not in _OTHER_WORDS
                if not certain:
                    self.doubts.add(text)
                is_field = before in (".", "->", "::") or (text, number) in field_places
                chosen[at] = _EVERYWHERE if is_field or text in everywhere else number
        shared = {"f": functions, "M": macros, "T": types & everywhere.keys(), "m": fields}
        self._write(chosen, anywhere, shared, types)

    def _doubt_arguments_made_text(self) -> None:
        """Macros can paste and quote what they are given, as it is written."""
        quoting = {
            name
            for name, places in self.macros.items()
            if any("#" in self.texts[at][1:] for at in places)
        }
        for at, text in enumerate(self.texts) if quoting else ():
            if text in quoting and self.texts[at + 1 : at + 2] == ["("]:
                stop = min(self.partner[at + 1], at + _LONGEST_ARGUMENTS)
                self.doubts.update(self.texts[at + 2 : stop])

    def _asked_macros(self) -> set[str]:
        """Names in live conditionals that are neither the compiler's nor a known library's."""
        asked: set[str] = set()
        for at in self.directives:
            found = _DIRECTIVE.match(self.texts[at]) if self.alive[at] else None
            if found and (found[1] in _CONDITIONALS or found[1] in _ALTERNATIVES):
                asked.update(_WORD.findall(found[2]))
        return {each for each in asked - _WORDS if not _RESERVED_MACRO.match(each)}

    def _keep_foreign(self, live: Sequence[_Item]) -> None:
        """Keep the names that are not the author's to choose: of what others define or call."""
        texts = self.texts
        defined = {texts[each.name] for each in live if each.kind == "function"}
        for item in live:
            part = texts[item.start : item.stop]
            if item.kind == "prototype" and part[0] != "template":
                self.kept |= {texts[item.name]} - defined - self.exported
            elif item.kind == "variable" and part[0] == "extern":
                self.kept |= set() if "__shared__" in part else item.names
            elif not self.is_closed and item.kind == "other":
                self.kept |= item.names - self.types
            elif not self.is_closed and item.kind in ("function", "variable"):
                is_variable = item.kind == "variable"
                head = part if is_variable else texts[item.start : item.name]
                if not self._is_internal(head, constant=is_variable):
                    self.kept |= item.names

    def _write(
        self,
        chosen: dict[int, int],
        anywhere: set[str],
        shared: dict[str, set[str]],
        types: set[str],
    ) -> None:
        """Number the names: those seen everywhere by their kind, the others in each item anew."""
        texts, alive = self.texts, self.alive
        directives = {
            at: list(self._pieces_of_directive(at, anywhere)) for at in self.directives if alive[at]
        }
        kept = {text for each in directives.values() for text, home in each if home is None}
        if any(map(_CANONICAL.match, set(texts))):
            kept |= {text for at, text in enumerate(texts) if alive[at] and at not in chosen}
        taken = {each for each in kept if _CANONICAL.match(each)}
        in_directives = {
            text for each in directives.values() for text, home in each if home == _EVERYWHERE
        }
        prefixes: dict[str, str] = {}
        for prefix, members in shared.items():
            for name in members:
                prefixes.setdefault(name, prefix)
        names: dict[tuple[int, str], str] = {}
        counts: Counter[tuple[int, str]] = Counter()

        def canonical(name: str, home: int) -> str:
            if name in self.exported:
                number = len(self.export_names) + 1
                while f"e{number}" in taken:
                    number += 1
                return self.export_names.setdefault(name, f"e{number}")
            if home == _EVERYWHERE or name in in_directives:
                home, prefix = _EVERYWHERE, prefixes.get(name, "g")
            else:
                prefix = "P" if name in types else "v"
            while (home, name) not in names or names[home, name] in taken:
                counts[home, prefix] += 1
                names[home, name] = f"{prefix}{counts[home, prefix]}"
            return names[home, name]

        for at in sorted((*chosen, *directives)):
            if at in chosen:
                texts[at] = canonical(texts[at], chosen[at])
            else:
                texts[at] = "".join(
                    text if home is None else canonical(text, home) for text, home in directives[at]
                )
                alive[at] = bool(texts[at])
        for at in self.strings:
            if alive[at] and (word := texts[at][1:-1]) in self.exported:
                texts[at] = f'"{canonical(word, _EVERYWHERE)}"'

    def _pieces_of_directive(self, at: int, anywhere: set[str]) -> Iterator[tuple[str, int | None]]:
        """A directive in pieces, each with where it is a name of the author's, None if it is none.

        A macro's parameters are names of its own, a pragma's are those of the item it stands in.
        """
        text = self.texts[at]
        found = _DIRECTIVE.match(text)
        word, rest = (found[1], found[2]) if found else ("", "")
        is_pragma = word == "pragma"
        if word in ("warning", "ident", "sccs", "line", "error") or (
            is_pragma
            and (_SILENT_PRAGMA.match(text) or not _PRAGMAS & set(_WORD.findall(rest)[:1]))
        ):
            self.doubts.add(text)
            if word == "error":
                yield "#error", None
            return
        if word.startswith(("include", "import")):
            yield text, None
            return
        home = self.home_of_pragma.get(at, _EVERYWHERE) if is_pragma else _EVERYWHERE
        definition = _DEFINE.match(text)
        parameters = set(_WORD.findall(definition[2] or "")) if definition else set()
        is_telling = definition and ("<<" in text or any(map(_TELLERS.match, _WORD.findall(text))))
        depth = 0
        before = ""
        for match in IN_DIRECTIVE.finditer(text):
            piece = match[0]
            is_own = False
            if match.lastgroup == "literal" and is_telling and piece.endswith('"'):
                piece = '""'
            elif match.lastgroup == "name" and match.start() > 1 and piece not in _WORDS:
                if is_pragma:
                    is_named = depth > 0 or before in ("unroll", "nounroll")
                    # The launch line of ours names the problem's dimensions and the macros.
                    own = self.macros if rest.startswith("kernelcast") else anywhere
                    is_own = is_named and piece in own
                elif piece in parameters:
                    is_own = before not in (".", "->")
                elif piece in anywhere:
                    is_own = before not in (".", "->") or not _LIBRARY_MEMBER.match(piece)
                elif definition:
                    is_own = self.is_closed and _is_pasted(text, match.span())
                    is_own = is_own and not _LIBRARY.match(piece)
                if is_own and piece not in parameters and piece not in self.macros:
                    self.doubts.add(piece)
            elif piece == "(":
                depth += 1
            elif piece == ")":
                depth -= 1
            mine = _EVERYWHERE if piece in self.seen_everywhere else home
            if piece in parameters:
                mine = -at
            yield piece, mine if is_own else None
            if not piece.isspace():
                before = "->" if (before, piece) == ("-", ">") else piece
        if "#" in text[1:]:  # names that are pasted or made into strings
            self.doubts.update(_WORD.findall(text))


def _declared_in(text: str) -> set[str]:
    """What a macro's body seems to declare: `int i`, `using A`."""
    found: set[str] = set()
    if text.startswith("#define "):
        expects = False
        for match in IN_DIRECTIVE.finditer(text):
            piece = match[0]
            if piece in _TYPE_WORDS - _QUALIFIERS or piece in ("using", "struct"):
                expects = piece not in ("static", "inline", "extern", "constexpr", "typename")
            elif match.lastgroup == "name":
                if expects and piece not in _WORDS and not _LIBRARY.match(piece):
                    found.add(piece)
                expects = expects and piece in _QUALIFIERS
            elif piece not in _POINTERS and not piece.isspace():
                expects = False
    return found


def _is_pasted(text: str, span: tuple[int, int]) -> bool:
    return text[: span[0]].rstrip().endswith("##") or text[span[1] :].lstrip().startswith("##")


def _word_of_directive(text: str) -> str:
    found = _DIRECTIVE.match(text)
    return found[1] if found else ""


def _nests(part: Iterable[str]) -> bool:
    """Whether the conditionals in an item end in it."""
    depth = 0
    for text in part:
        if text[0] == "#" and (found := _DIRECTIVE.match(text)):
            depth += (found[1] in _CONDITIONALS) - (found[1] == "endif")
            if depth < 0 or (depth == 0 and found[1] in _ALTERNATIVES):
                return False
    return depth == 0


def _words_of_directive(text: str) -> tuple[list[str], list[str]]:
    """The names a directive needs, and those of which it only asks whether they are macros."""
    found = _DIRECTIVE.match(text)
    word, rest = (found[1], found[2]) if found else ("", "")
    if word in _ASKS_ONLY:
        return [], _WORD.findall(rest)
    return _WORD.findall(_DEFINED.sub("", rest)), _DEFINED.findall(rest)


def _without_disabled(lexed: Sequence[Token]) -> Sequence[Token]:
    """Without what `#if 0` leaves out; the tokens as they are where conditionals do not nest."""
    kept: list[Token] = []
    opened: list[str] = []
    skipped = 0
    for token in lexed:
        found = _DIRECTIVE.match(token.text) if token.kind == "directive" else None
        word, rest = (found[1], found[2].strip()) if found else ("", "")
        if word in _CONDITIONALS:
            state = "kept"
            if skipped:
                state = "inside"
            elif word == "if" and rest in ("0", "false"):
                state = "off"
            elif word == "if" and rest in ("1", "true"):
                state = "on"
            opened.append(state)
            skipped += state in ("inside", "off")
            if state == "kept":
                kept.append(token)
        elif word in _ALTERNATIVES or word == "endif":
            if not opened:
                return lexed
            state = opened[-1]
            if word == "endif":
                opened.pop()
                skipped -= state in ("inside", "off", "done")
            elif state == "on":
                opened[-1] = "done"
                skipped += 1
            elif state == "off":
                opened[-1] = "on" if word == "else" else "kept"
                skipped -= 1
                if word != "else":
                    kept.append(Token("directive", f"#{word.removeprefix('el')} {rest}"))
            if state == "kept":
                kept.append(token)
        elif not skipped:
            kept.append(token)
    return lexed if opened else kept
