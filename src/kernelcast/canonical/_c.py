r"""Canonical form of C, C++, CUDA, HIP and OpenCL.

A program is cut into top-level items by its brackets, without a parser. An item is live if a live
item mentions one of its names; the others are dropped. Of the names that remain, those of the
closed vocabulary stay and every other one is numbered, so that a wrong guess about a declaration
costs a name at most and never shows a word of the author's.

Structure and naming work on the token tables of one program, so they share this long file.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import compress, pairwise, takewhile
from typing import Any, Literal

from kernelcast.canonical._lexer import IN_DIRECTIVE, STANDS_IN, Token, TokenKind
from kernelcast.canonical._vocabulary import NO_NAMES, KeptNames, Numbers, Vocabulary, role

_TYPE_KEYS = frozenset({"struct", "class", "union", "enum"})
_BEFORE_TYPE = _TYPE_KEYS | {"typename", "using", "namespace"}
_TYPES = role("types")
_QUALIFIERS = role("qualifiers")
_SPECIFIERS = role("specifiers")
_ATTRIBUTES = role("attributes")
_INTERNAL = frozenset({"static", "inline", "__device__", "constexpr", "__forceinline__"})
# Calls and specifiers whose strings are code.
_TAKES_CODE = frozenset({"asm", "__asm__", "__asm", "_Pragma", "__attribute__"})
_PRAGMAS = role("pragmas")
_SILENT_PRAGMA = re.compile(r"#pragma (?:GCC |clang )?(?:message|warning|region|endregion)\b")
_SILENT_DIRECTIVES = frozenset({"warning", "ident", "sccs", "line", ""})

_DIRECTIVE = re.compile(r"#\s*(\w*)\s*(.*)", re.DOTALL)
_HEADER = re.compile(r"[<\"](?:[\w.+-]+/)*[\w.+-]+[>\"]\Z")
_DEFINE = re.compile(r"#define ([^\s(]+)(\([^)]*\))?", re.DOTALL)
_DEFINED = re.compile(r"\bdefined\s*\(?\s*(\w+)")
_CONDITIONALS = frozenset({"if", "ifdef", "ifndef"})
_ALTERNATIVES = frozenset({"else", "elif", "elifdef", "elifndef"})
_DIRECTIVES = _CONDITIONALS | _ALTERNATIVES
_DIRECTIVES |= {"define", "undef", "endif", "pragma"}
_NAMING = frozenset({"define", "undef", "ifdef", "ifndef"})  # a name follows, after a gap
_CONSTANT_CONDITIONS = frozenset({"#if 0", "#if false", "#if 1", "#if true"})
_CONSTANTS = {"0": "off", "false": "off", "1": "on", "true": "on"}
_SKIPPED = frozenset({"off", "done"})
_GROUP_LETTERS = dict.fromkeys(_CONDITIONALS, "I") | dict.fromkeys(_ALTERNATIVES, "E")
_GROUP_LETTERS |= {"endif": "N"}
_EMPTY_GROUP = re.compile("IE*N|o*OC")
_ASKS_ONLY = frozenset({"ifdef", "ifndef", "elifdef", "elifndef", "undef"})
_WORD = re.compile(r"[^\W\d]\w*")
_DIGRAPHS = {"<%": "{", "%>": "}", "<:": "[", ":>": "]"}
_STRAY = frozenset({Token("punctuator", "#"), Token("punctuator", "%:")})
_CLOSING = {"(": ")", "[": "]", "{": "}"}
_ACCESS = frozenset({".", "->", "::"})
_AFTER_NAME = frozenset({"=", ";", ",", "[", "{", ":", "final"})
# One letter a token: patterns then find statements.
_CODES = dict.fromkeys(
    _TYPES | _QUALIFIERS | _SPECIFIERS | {"::", "std", "string", "string_view"}, "t"
)
_CODES |= {"if": "F", "else": "E", "while": "W", "void": "V", "0": "Z", "false": "Z"}
_KIND_CODES = {"identifier": "i", "number": "n", "character": "n", "string": "s", "directive": "d"}
_IDLE = re.compile(r"(?<![^;{}d])(?:s+|\(V\)(?:i|s+));")
_NEVER = re.compile(r"[FW]\(Z\)\{")
_TEXT = re.compile(r"(?<![^;{}d])(?:t|\[\[t+\]\])+(?P<name>i)(?:\[[^]]*\])*=?[{(]*s[snZ{},)]*;")
_MOST_ROUNDS = 8  # dropping an item can leave another one unused

# What a literal may show. A suffix of the author's is numbered, any other excess is cut off.
_NUMBER = re.compile(
    r"(0[xX][0-9a-fA-F'.]*(?:[pP][+-]?\d+)?|0[bB][01']+|[0-9'.]*(?:[eE][+-]?\d+)?)"
    r"([uUlLfFzZhH]{0,3}|bf16|BF16|f16|F16)?(.*)",
    re.DOTALL,
)
_CHARACTER = re.compile(r"(?:u8|[uUL])?'(?:[^\\]|\\(?:[^xuU]|[0-7]{1,3}|x[0-9a-fA-F]{1,4}))'\Z")
_SUFFIX = re.compile(r"[\"'](_\w+)\Z")
_RAW = re.compile(r'\w*R"([^(]*)\((.*)\)\1"', re.DOTALL)
_PLACE = re.compile(f"{STANDS_IN}\\d+{STANDS_IN}")
_IN_ASSEMBLY = re.compile(
    r"//(?:(?!\\n|\n|\"\Z).)*|/\*.*?\*/|(?P<escape>\\.)|(?P<number>\d[0-9a-fA-FxXuUlLB.]*)\w*"
    r"|(?P<word>[^\W\d]\w*)",
    re.DOTALL,
)

_Opened = tuple[int, Any] | None
"""The innermost open bracket and those around it."""


@dataclass(slots=True)
class _Item:
    """Tokens between two boundaries at the top level; a mention of a name of it makes it live.

    A namespace is two items, `open` and `close`.
    """

    start: int
    stop: int
    kind: Literal["function", "variable", "type", "open", "close", "other"] = "other"
    names: set[str] = field(default_factory=set)
    live: bool = True


def reduce_c(
    sources: Sequence[Sequence[Token]],
    vocabulary: Vocabulary,
    entry: str | None = None,
    wanted: Collection[str] = (),
    own: KeptNames = NO_NAMES,
) -> tuple[list[list[tuple[TokenKind, str]]], dict[str, str]]:
    """Canonical tokens of each source of one program, and the new names of what `wanted` calls.

    `entry` is the function that the problem calls; it keeps its name. For a program inside another
    language, `wanted` holds the words by which it may be called: functions so named are the
    entries. Without either, every function with external linkage is an entry. `own` are the
    author's names that stay.
    """
    programs = [_Program(source, vocabulary) for source in sources]
    called = {str(entry)} if any(entry in program.functions for program in programs) else set()
    kept = frozenset(called)
    if not called:
        # What the outside calls by name, and what one source calls in another.
        defined = {name for program in programs for name in program.functions - program.internal}
        asked = {name for program in programs for name in program.prototypes}
        called = defined & {*wanted, *asked}
    has_labels = any(program.has_labels for program in programs)
    for program in programs:
        program.reduce(called, is_closed=bool(called) or has_labels)
    names = _Names(programs, vocabulary, kept, own)
    reduced = [list(names.written(program)) for program in programs]
    return reduced, {name: new for name in wanted if (new := names.numbers.known(name))}


@lru_cache(maxsize=10_000)
def _directive_pieces(text: str) -> list[tuple[str | None, str]]:
    return [(match.lastgroup, match[0]) for match in IN_DIRECTIVE.finditer(text)]


def numbered_c(lexed: Sequence[Token], vocabulary: Vocabulary) -> str:
    """Every token, with numbers for the names that occur more than once and no list owns.

    A name that occurs once may belong to the outside, as an entry does, so it stays.
    """
    pieces: list[tuple[str | None, str]] = []
    for token in lexed:
        if token.kind == "directive" and not token.text.startswith("#include"):
            pieces += _directive_pieces(token.text)
        else:
            pieces.append(("name" if token.kind == "identifier" else token.kind, token.text))
    times = Counter(text for kind, text in pieces if kind == "name")
    # A macro that makes text of its argument makes every name count.
    is_quoted = any(token.kind == "directive" and "#" in token.text[1:] for token in lexed)
    own = {name for name in times if times[name] > 1 and not is_quoted} - vocabulary.names
    numbers = Numbers()
    written: list[str] = []
    for before, text in pairwise(("", *(text for _, text in pieces))):
        is_own = text in own and not (before in _ACCESS and text in vocabulary.members)
        written.append(numbers.of(text, "\1") if is_own else text)
    return "\0".join(written)


class _Program:
    """The tokens of one source in a row; `alive` says which of them remain."""

    def __init__(self, lexed: Sequence[Token], vocabulary: Vocabulary) -> None:
        self.words = vocabulary
        # A stray # is garbage: dropping tokens could make it the first on its line.
        texts = {text for _, text in lexed}
        is_garbage = not _STRAY.isdisjoint(lexed)
        if not is_garbage and not _CONSTANT_CONDITIONS.isdisjoint(texts):
            lexed = _without_disabled(lexed)
        if not _DIGRAPHS.keys().isdisjoint(texts):
            lexed = [Token(kind, _DIGRAPHS.get(text, text)) for kind, text in lexed]
        self.kinds: list[TokenKind] = [kind for kind, _ in lexed]
        self.texts = [text for _, text in lexed]
        self.alive = bytearray(b"\1") * len(self.texts)
        self.partner = [-1] * len(self.texts)
        self.directives = {
            at: _directive(text) for at, (kind, text) in enumerate(lexed) if kind == "directive"
        }
        self.codes = "".join(
            [
                _CODES.get(text) or _KIND_CODES.get(kind) or (text if len(text) == 1 else "o")
                for kind, text in lexed
            ]
        )
        self.macros: dict[str, list[int]] = {}
        for at in self.directives:
            if match := _DEFINE.match(self.texts[at]):
                self.macros.setdefault(match[1], []).append(at)
        self.is_structured = not is_garbage and self._match_brackets()
        self.items = list(self._split()) if self.is_structured else [_Item(0, len(self.texts))]
        functions = [item for item in self.items if item.kind == "function"]
        self.functions = set().union(
            *(item.names for item in functions if self.texts[item.stop - 1] == "}")
        )
        self.prototypes = set().union(*(item.names for item in functions)) - self.functions
        if not self.is_structured:
            self.functions = {*self.texts}
        self.internal = set().union(*(item.names for item in functions if self._is_internal(item)))
        self.has_labels = "def" in texts and "(s" in self.codes

    def reduce(self, entries: Collection[str], *, is_closed: bool) -> None:
        """Drop what does nothing, and what the entries do not reach if the program is closed."""
        if not self.is_structured:
            return
        self._drop_never_run()
        for _ in range(_MOST_ROUNDS):
            self._reach(entries, is_closed=is_closed)
            for item in self.items:
                if not item.live:
                    self._drop(item.start, item.stop)
            if not self._drop_empty_groups() | self._drop_unused_texts():
                return

    def _drop(self, start: int, stop: int) -> None:
        """Drop tokens, but not the macros and conditionals among them, which have their own end."""
        for at in range(start, stop):
            word, _ = self.directives.get(at, ("pragma", ""))
            if word not in _DIRECTIVES or word == "pragma":
                self.alive[at] = 0

    # ---- structure -------------------------------------------------------------------------------

    def _match_brackets(self) -> bool:
        """Find the partner of each bracket; False if they do not fit.

        Each branch of a conditional goes on from what was open before it; if each opens as much,
        what closes one closes all.
        """
        texts, kinds, partner = self.texts, self.kinds, self.partner
        opened: _Opened = None
        twins: dict[int, list[int]] = {}
        conditionals: list[tuple[_Opened, list[_Opened]]] = []
        for at, text in enumerate(texts):
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
                word, _ = self.directives[at]
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

    def _split(self) -> Iterator[_Item]:
        texts = self.texts
        at = first = 0
        while at < len(texts):
            text = texts[at]
            stop = at + 1
            if at in self.directives:
                if at == first:
                    yield _Item(at, stop)
                    first = stop
            elif text == "(" or text == "[":
                at = self.partner[at]
            elif text == "{" and (
                "namespace" in texts[first : min(first + 2, at)]
                or (texts[first] == "extern" and first + 2 == at)
            ):
                yield _Item(first, stop, "open")
                first = stop
            elif text == "{":
                at = self.partner[at]
                item = self._item(first, at + 1, stop - 1)
                if item.kind in ("function", "other"):
                    yield item
                    first = at + 1
            elif text == "}":
                if first < at:
                    yield _Item(first, at)
                yield _Item(at, stop, "close")
                first = stop
            elif text == ";":
                yield self._item(first, stop, at)
                first = stop
            at += 1
        if first < len(texts):
            yield _Item(first, len(texts))

    def _item(self, first: int, stop: int, head_stop: int) -> _Item:
        """The item that a body or a semicolon ends, with the names that it declares."""
        texts, kinds = self.texts, self.kinds
        start = at = first
        item = _Item(first, stop, "variable")
        angles = 0
        in_value = False
        while at < head_stop:
            text = texts[at]
            if text == "operator":
                return _Item(first, stop)
            if text == "<" or text[0] == ">":
                angles += 1 if text == "<" else -text.count(">")
                if angles <= 0 and texts[start] == "template":
                    start = at + 1
            elif text in _CLOSING:
                end = self.partner[at]
                is_call = text == "(" and at > start and kinds[at - 1] == "identifier"
                if text == "{" and "enum" in texts[start:at]:
                    item.names |= {
                        texts[place]
                        for place in range(at + 1, end)
                        if texts[place - 1] in ("{", ",") and kinds[place] == "identifier"
                    }
                elif text == "(" and texts[at + 1] in ("*", "&") and not in_value:
                    item.names.add(texts[at + 2])  # a pointer to a function
                elif is_call and not (in_value or angles > 0 or item.kind == "type" or item.names):
                    name = at - 1
                    if not _is_attribute(texts[name]):
                        # Without a type before it, it is a macro such as PYBIND11_MODULE.
                        if name == start or texts[start] in _TAKES_CODE:
                            return _Item(first, stop)
                        while name - 2 > start and texts[name - 1] == "::":
                            name -= 2
                        return _Item(first, stop, "function", {texts[name]})
                in_value = in_value and text != "{"
                at = end
            elif angles > 0:
                pass
            elif text in _TYPE_KEYS or text in ("typedef", "using"):
                item.kind = "type"
            elif text in ("=", ":", ","):
                in_value = text != ","
            elif kinds[at] == "identifier" and not in_value:
                is_keyed = at > start and texts[at - 1] in _TYPE_KEYS
                is_new = text not in self.words.names and texts[at + 1] in _AFTER_NAME
                if (is_keyed or is_new) and not _is_attribute(text):
                    item.names.add(text)
            at += 1
        is_directive = texts[start] == "using" and not in_value
        return _Item(first, stop) if is_directive else item

    def _is_internal(self, item: _Item) -> bool:
        """Whether nothing outside can call or read what an item declares."""
        head = self.texts[item.start : item.stop]
        words = set(takewhile(lambda text: text not in ("{", "="), head))
        for macro in words & self.macros.keys():
            words.update(*(_WORD.findall(self.texts[at]) for at in self.macros[macro]))
        is_constant = "const" in words and not words & {"*", "__constant__", "extern"}
        is_hidden = item.kind == "variable" and is_constant
        return is_hidden or "template" in words or not words.isdisjoint(_INTERNAL)

    def parameters(self, item: _Item) -> list[str]:
        """The names of a function's parameters, as far as they are plain."""
        texts = self.texts
        places = range(item.start, item.stop - 1)
        heads = [at for at in places if texts[at] in item.names and texts[at + 1] == "("]
        if item.kind != "function" or not heads:
            return []
        at = heads[0]
        names = [""]
        angles = 0
        in_value = False
        stop = self.partner[at + 1]
        at += 2
        while at < stop:
            text = texts[at]
            if text == "<" or text[0] == ">":
                angles += 1 if text == "<" else -text.count(">")
            elif text == "," and angles <= 0:
                names.append("")
                in_value = False
            elif text == "=":
                in_value = True
            elif text in _CLOSING:
                names[-1] = "" if text != "[" else names[-1]
                in_value = in_value or text == "("
                at = self.partner[at]
            elif self.kinds[at] == "identifier" and angles <= 0 and not in_value:
                names[-1] = text
            at += 1
        return names

    # ---- code that does nothing ------------------------------------------------------------------

    def _drop_never_run(self) -> None:
        """Drop `"words";`, `(void)x;` and what `if (0)` and `while (false)` guard."""
        codes = self.codes
        for match in _IDLE.finditer(codes):
            self._drop(*match.span())
        for match in _NEVER.finditer(codes):
            key, end = match.start(), self.partner[match.end() - 1]
            has_else = codes[end + 1 : end + 2] == "E"
            starts = key == 0 or codes[key - 1] in ";{}d"
            if codes[key] == "F" if has_else else starts:
                self._drop(key, end + 1 + has_else)

    def _drop_unused_texts(self) -> bool:
        """Drop variables that hold text and are mentioned once: where they are declared."""
        texts, alive = self.texts, self.alive
        declared = [match for match in _TEXT.finditer(self.codes) if alive[match.start()]]
        mentions: Counter[str] = Counter()
        for text, kind in compress(zip(texts, self.kinds, strict=True), alive if declared else ()):
            mentions.update(_WORD.findall(text) if kind == "directive" else (text,))
        unused = [match for match in declared if mentions[texts[match.start("name")]] == 1]
        for match in unused:
            self._drop(*match.span())
        return bool(unused)

    # ---- reachability ----------------------------------------------------------------------------

    def _reach(self, entries: Collection[str], *, is_closed: bool) -> None:
        """Find the live items, and drop the macros that no live item mentions."""
        texts, alive = self.texts, self.alive
        by_name: dict[str, list[_Item]] = {}
        todo: list[str] = []
        asked: set[str] = set()

        def visit(item: _Item) -> None:
            item.live = True
            for at in range(item.start, item.stop):
                text = texts[at]
                if not alive[at]:
                    continue
                if text in by_name or text in self.macros:
                    # `std::min` is not the author's.
                    is_qualified = at - item.start > 1 and texts[at - 1] == "::"
                    if not (is_qualified and texts[at - 2] in self.words.names):
                        todo.append(text)
                elif at in self.directives and self.directives[at][0] != "define":
                    needs, asks = _words_of_directive(text)
                    todo.extend(needs)
                    asked.update(asks)

        roots = []
        for item in self.items:
            item.live = False
            for name in item.names:
                by_name.setdefault(name, []).append(item)
            is_root = not item.names or not item.names.isdisjoint(entries)
            is_open = item.kind in ("function", "variable") and not is_closed
            if is_root or (is_open and not self._is_internal(item)):
                roots.append(item)
        for item in roots:
            visit(item)
        mentioned: set[str] = set()
        while todo:
            word = todo.pop()
            if word in mentioned:
                continue
            mentioned.add(word)
            for item in by_name.get(word, ()):
                if not item.live:
                    visit(item)
            for at in self.macros.get(word, ()):
                if alive[at]:
                    todo.extend(_WORD.findall(texts[at]))
        for name, places in self.macros.items():
            for at in places:
                alive[at] &= name in mentioned or name in asked
                if name not in mentioned:
                    texts[at] = f"#define {name}"

    def _drop_empty_groups(self) -> bool:
        """Drop namespaces and conditionals that hold nothing any more."""
        places = [at for at in range(len(self.texts)) if self.alive[at]]
        asked: Counter[str] = Counter()
        letters = dict.fromkeys(places, "x")
        for item in self.items:
            if item.kind in ("open", "close"):
                letters.update(dict.fromkeys(range(item.start, item.stop - 1), "o"))
                letters[item.stop - 1] = "O" if item.kind == "open" else "C"
        for at, (word, _) in self.directives.items():
            letters[at] = _GROUP_LETTERS.get(word, "x")
            if self.alive[at] and word != "define":
                asked.update(_words_of_directive(self.texts[at])[1])
            elif asked[self.texts[at].partition(" ")[2]] == 1:
                letters[at] = "E"  # only to be asked for once: `#ifndef A`
        codes = "".join([letters[at] for at in places])
        changed = False
        while match := _EMPTY_GROUP.search(codes):
            for at in places[match.start() : match.end()]:
                self.alive[at] = 0
            del places[match.start() : match.end()]
            codes = codes[: match.start()] + codes[match.end() :]
            changed = True
        return changed


# ---- names ---------------------------------------------------------------------------------------


class _Names:
    """Writes the live tokens of a program: owned names stay, all others are numbered.

    A name that is seen only inside functions, and not behind an access or before a call, is
    numbered in each function anew, so that an edit in one leaves the others as they were. The
    prefix of any other name says what it seems to be.
    """

    def __init__(
        self,
        programs: Sequence[_Program],
        vocabulary: Vocabulary,
        kept: frozenset[str],
        own: KeptNames,
    ) -> None:
        self.words = vocabulary
        self.kept = kept
        self.own = own
        self.numbers = Numbers(own)
        self.defined = {
            name
            for program in programs
            for item in program.items
            for name in item.names - _TAKES_CODE - _CODES.keys()
            if program.alive[item.start]
        }
        """Names of the program's own, even if a library has them as well."""
        self.shared: set[str] = set()
        """Names that have one number in the whole program."""
        self.prefixes: dict[str, str] = {}
        for program in programs:
            self._survey(program)
        for program in programs:
            for number, item in enumerate(program.items):
                if not item.names.isdisjoint(kept):
                    self._call_parameters(program, item, _home(program, number))

    def _survey(self, program: _Program) -> None:
        texts = program.texts
        for item in program.items:
            is_local = item.kind == "function"
            for at in range(item.start, item.stop):
                text = texts[at]
                if not program.alive[at]:
                    continue
                if at in program.directives:
                    word, rest = program.directives[at]
                    if word != "pragma" or not is_local:
                        self.shared |= {*_WORD.findall(rest)} - _parameters(text)
                    continue
                if program.kinds[at] != "identifier":
                    continue
                before = texts[at - 1] if at > item.start else ""
                if text in self._owned(item, before) and text not in self.defined:
                    continue
                after = texts[at + 1] if at + 1 < item.stop else ""
                if before in _BEFORE_TYPE or after == "::":
                    self.prefixes[text] = "T"
                elif after == "(" or after == "<<<":
                    self.prefixes.setdefault(text, "f")
                elif before in _ACCESS:
                    self.prefixes.setdefault(text, "m")
                if not is_local or before in _ACCESS or after in ("(", "<<<", "::"):
                    self.shared.add(text)
        self.prefixes.update(dict.fromkeys(program.macros, "M"))

    def _call_parameters(self, program: _Program, item: _Item, home: str) -> None:
        """Show the entry's parameters under the problem's names for them, unless one clashes."""
        wanted = self.own.arguments
        given = program.parameters(item)
        pairs = dict(zip(given, wanted, strict=False))
        if len(given) != len(wanted) or len(pairs) < len(wanted) or "" in pairs:
            return
        if not all(new in self.own and new.isascii() and new.isidentifier() for new in wanted):
            return
        declared = self._declared(program, item)
        used = self.shared | self.defined
        for at in range(item.start, item.stop):
            if program.alive[at] and at in program.directives:
                used.update(_WORD.findall(program.texts[at]))
            elif program.alive[at] and program.texts[at - 1] not in _ACCESS:
                used.add(program.texts[at])
        changed = {name: new for name, new in pairs.items() if name != new}
        for name, new in changed.items():
            is_plain = name in declared or name not in self.words.names
            is_free = new in changed or not (new in used or new in self.words.names)
            if not (is_plain and name not in self.shared and is_free):
                return
        for name, new in changed.items():
            self.numbers.call(name, new, home)

    def _owned(self, item: _Item, before: str) -> frozenset[str]:
        """The words that stay in a place: members of a type are declared without an access."""
        is_member = before in _ACCESS or item.kind == "type"
        return self.words.members if is_member else self.words.names

    def _name(self, name: str, home: str, owned: Collection[str], mine: Collection[str]) -> str:
        if name in self.kept:
            return name
        if name in owned and name not in mine:
            return name
        places = ""
        if STANDS_IN in name:  # in C++ that an f-string puts together
            places = "".join(_PLACE.findall(name))
            name = _PLACE.sub("", name).replace(STANDS_IN, "")
            if not name:
                return places or self.numbers.of(STANDS_IN, "g")
        if name in self.shared and (name in self.defined or name not in mine):
            return self.numbers.of(name, self.prefixes.get(name, "g")) + places
        is_type = self.prefixes.get(name) == "T"
        return self.numbers.of(name, "P" if is_type else "v", home) + places

    def written(self, program: _Program) -> Iterator[tuple[TokenKind, str]]:
        """The canonical tokens of a program."""
        texts = program.texts
        code_stop = 0  # the end of assembly, pragmas and attributes, whose strings are code
        for number, item in enumerate(program.items):
            home = _home(program, number)
            mine = self.defined
            if item.kind == "function":
                mine = mine | self._declared(program, item)
            known: dict[tuple[str, bool], str] = {}
            for at in range(item.start, item.stop):
                if not program.alive[at]:
                    continue
                text = texts[at]
                kind = program.kinds[at]
                before = texts[at - 1] if at > item.start else ""
                if kind == "identifier":
                    if text in _TAKES_CODE and "(" in texts[at + 1 : at + 3]:
                        code_stop = program.partner[texts.index("(", at)]
                    key = (text, before in _ACCESS)
                    if key not in known:
                        owned = self._owned(item, before)
                        known[key] = self._name(text, home, owned, () if key[1] else mine)
                    text = known[key]
                elif kind == "number":
                    text = self._number(text)
                elif kind == "character":
                    text = text if _CHARACTER.match(text) else "''"
                elif kind == "string":
                    is_code = at < code_stop
                    text = self._in_assembly(text, home) if is_code else self._string(text, before)
                elif kind == "directive":
                    text = self._directive(text, home, mine)
                if text:
                    yield kind, text

    def _declared(self, program: _Program, item: _Item) -> set[str]:
        """Owned names that a function declares as variables of its own: `int min = 0;`."""
        texts = program.texts
        declared: set[str] = set()
        for at in range(item.start + 1, item.stop):
            if program.kinds[at] == "identifier" and texts[at] in self.words.names:
                before = at - 1
                while before > item.start and texts[before] in _QUALIFIERS:
                    before -= 1
                is_name = at + 1 < item.stop and texts[at + 1] in _AFTER_NAME | {")"}
                if texts[before] in _TYPES and is_name and texts[at] not in _TYPES:
                    declared.add(texts[at])
        return declared

    def _number(self, text: str) -> str:
        if text.isdigit():
            return text
        match = _NUMBER.match(text)
        assert match
        value, suffix, rest = match.groups()
        if not rest:
            return text
        if rest[0] == "_":
            return f"{value}{suffix}_{self.numbers.of(rest, 'u')}"
        return value.rstrip("'") or "0"

    def _string(self, text: str, before: str) -> str:
        if before == "extern" and text in ('"C"', '"C++"'):
            return text
        if new := self.numbers.known(text[1:-1]):
            return f'"{new}"'  # the name under which a function is exported
        suffix = _SUFFIX.search(text)
        return f'""_{self.numbers.of(suffix[1], "u")}' if suffix else '""'

    def _in_assembly(self, text: str, home: str) -> str:
        def write(match: re.Match[str]) -> str:
            if word := match["word"]:
                return word if word in self.words.texts else self.numbers.of(word, "n", home)
            return match["escape"] or match["number"] or ""

        if raw := _RAW.match(text):
            text = json.dumps(raw[2], ensure_ascii=False)
        opening = max(text.find('"'), 0)
        return text[opening] + _IN_ASSEMBLY.sub(write, text[opening + 1 :])

    def _directive(self, text: str, home: str, mine: Collection[str]) -> str:
        """The directive under canonical names; "" to drop it."""
        word, rest = _directive(text)
        is_pragma = word == "pragma"
        if word in _SILENT_DIRECTIVES or (
            is_pragma
            and (_SILENT_PRAGMA.match(text) or _PRAGMAS.isdisjoint(_WORD.findall(rest)[:1]))
        ):
            return ""
        if word in ("include", "include_next", "import") and _HEADER.match(rest):
            return f"#{word} {self._in_assembly(rest, home)}"
        if word not in _DIRECTIVES or (word in _NAMING and text[len(word) + 1 :][:1].strip()):
            return "#error"
        texts = self.words.texts if is_pragma else frozenset()
        is_code = bool(texts) or not _TAKES_CODE.isdisjoint(_WORD.findall(rest))
        parameters = _parameters(text)
        before = ""
        written = [f"#{word}"]
        for match in IN_DIRECTIVE.finditer(text, text.index(word) + len(word)):
            piece = match[0]
            if match.lastgroup == "literal":
                piece = self._in_assembly(piece, home) if is_code and '"' in piece else '""'
            elif match.lastgroup == "number":
                piece = self._number(piece)
            elif match.lastgroup == "name":
                if piece in parameters:
                    piece = self.numbers.of(piece, "v", text)
                elif piece not in texts:
                    is_member = before in _ACCESS
                    owned = self.words.members if is_member else self.words.names
                    piece = self._name(piece, home, owned, mine if is_pragma else ())
            if not piece.isspace():
                before = "->" if (before, piece) == ("-", ">") else piece
            written.append(piece)
        return "".join(written)


def _home(program: _Program, number: int) -> str:
    """The home of the names that only one item of a program has."""
    return f"{id(program)}:{number}"


def _is_attribute(word: str) -> bool:
    return word in _ATTRIBUTES or "LAUNCH_BOUNDS" in word


def _directive(text: str) -> tuple[str, str]:
    """The word of a directive and what follows it."""
    match = _DIRECTIVE.match(text)
    return (match[1], match[2]) if match else ("", "")


def _parameters(text: str) -> set[str]:
    """The parameters of the macro that a directive defines."""
    match = _DEFINE.match(text)
    return set(_WORD.findall(match[2] or "")) if match else set()


def _words_of_directive(text: str) -> tuple[list[str], list[str]]:
    """The names a directive needs, and those of which it only asks whether they are macros."""
    word, rest = _directive(text)
    if word in _ASKS_ONLY:
        return [], _WORD.findall(rest)
    return _WORD.findall(_DEFINED.sub("", rest)), _DEFINED.findall(rest)


def _without_disabled(lexed: Sequence[Token]) -> Sequence[Token]:
    """Without what `#if 0` leaves out; the tokens as they are where conditionals do not nest."""
    kept: list[Token] = []
    opened: list[str] = []
    skipped = 0
    for token in lexed:
        word, rest = _directive(token.text) if token.kind == "directive" else ("", "")
        ends = word in _ALTERNATIVES or word == "endif"
        if ends and not opened:
            return lexed
        state = opened.pop() if ends else ""
        skipped -= state in _SKIPPED
        is_shown = not skipped and state in ("", "plain")
        if word in _CONDITIONALS or (word in _ALTERNATIVES and state == "off"):
            is_constant = word in ("if", "elif") and not skipped
            new = _CONSTANTS.get(rest.strip(), "plain") if is_constant else "plain"
            new = "on" if word == "else" else new
            if new == "plain" and state == "off" and not skipped:
                kept.append(Token("directive", f"#{word.removeprefix('el')} {rest}"))
            is_shown = is_shown and new == "plain"
            opened.append(new)
        elif word in _ALTERNATIVES:
            opened.append("done" if state == "on" else state)
        if word in _CONDITIONALS or word in _ALTERNATIVES:
            skipped += opened[-1] in _SKIPPED
        if is_shown:
            kept.append(token)
    return lexed if opened else kept
