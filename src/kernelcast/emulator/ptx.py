"""PTX as nvcc, NVRTC and Triton emit it, read into functions of basic blocks.

The reader knows the form of the language: declarations, scopes, labels, guards, operands and source
lines. It does not know what an instruction does; `lanes` does.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

from kernelcast.errors import KernelcastError

Space = Literal["const", "global", "shared", "local", "param"]

SIZES = {
    "pred": 1,
    "b8": 1,
    "u8": 1,
    "s8": 1,
    "b16": 2,
    "u16": 2,
    "s16": 2,
    "f16": 2,
    "bf16": 2,
    "b32": 4,
    "u32": 4,
    "s32": 4,
    "f32": 4,
    "tf32": 4,
    "f16x2": 4,
    "bf16x2": 4,
    "b64": 8,
    "u64": 8,
    "s64": 8,
    "f64": 8,
    "b128": 16,
}
"""Bytes of a value of each type."""

_ENDS_A_BLOCK = frozenset({"bra", "brx", "ret", "exit", "trap", "bar", "barrier", "call"})


class NotEmulated(KernelcastError):
    """The code has something that the emulator does not know; the message says what."""


@dataclass(frozen=True)
class Instruction:
    """One instruction; its operands are texts, and `line` is that of the kernel's source, or 0."""

    text: str
    opcode: str
    modifiers: tuple[str, ...]
    operands: tuple[str, ...]
    guard: str = ""
    negated: bool = False
    line: int = 0

    @property
    def types(self) -> list[str]:
        """The types among its modifiers, in their order."""
        return [name for name in self.modifiers if name in SIZES]


@dataclass(frozen=True)
class Variable:
    """A named piece of memory; `data` is what it holds at first; the launch states a size of 0."""

    name: str
    space: Space
    size: int
    align: int
    data: bytes = b""


@dataclass(frozen=True)
class Function:
    """A function: `labels` are the numbers of the blocks that they name."""

    name: str
    is_entry: bool
    parameters: tuple[Variable, ...]
    results: tuple[Variable, ...]
    registers: Mapping[str, str]
    variables: tuple[Variable, ...]
    blocks: tuple[tuple[Instruction, ...], ...]
    labels: Mapping[str, int]
    tables: Mapping[str, tuple[str, ...]]
    """Targets of indirect branches."""
    threads: tuple[int, ...] = ()
    """Extent of a block, if the code states it."""


@dataclass(frozen=True)
class Module:
    """All functions and variables of a text of PTX."""

    target: str
    functions: Mapping[str, Function]
    variables: tuple[Variable, ...]

    def entry(self, name: str = "") -> Function:
        """Return the entry of this name, or the only one.

        Raises:
            NotEmulated: There is no such entry.
        """
        entries = [f for f in self.functions.values() if f.is_entry and name in ("", f.name)]
        if len(entries) != 1:
            raise NotEmulated(f"{len(entries)} entries {name}".rstrip())
        return entries[0]

    def with_data(self, data: Mapping[str, bytes]) -> Module:
        """Return the module with other content in some of its variables."""
        variables = (replace(v, data=data.get(v.name, v.data)) for v in self.variables)
        return replace(self, variables=tuple(variables))


# ------------------------------------------------------------------------------------ the text

_TOKEN = re.compile(
    r"""
      (?P<skip> //[^\n]* | /\*.*?\*/ | \s+ )
    | (?P<line> \.(?:loc|file|version|target|address_size)\b[^\n]* )
    | (?P<label> [A-Za-z_$%][\w$]*[ \t]*:(?!:) )
    | (?P<mark> [;{}] )
    | (?P<word> "(?:\\.|[^"\\])*" | (?:[^\s;{}"/:]|::|/(?![/*]))+ )
    """,
    re.VERBOSE | re.DOTALL,
)
_BRACES = re.compile(r"(?<=\{) | (?=[},])")
_Statement = tuple[Literal["end", "open", "close", "label", "line"], str]


def _statements(text: str) -> Iterator[_Statement]:
    """Yield what ends in `;`, what opens or closes a scope, labels, and directives of one line."""
    words: list[str] = []
    depth = position = 0  # of the braces of operands and values
    while position < len(text):
        token = _TOKEN.match(text, position)
        if token is None:
            raise NotEmulated(f"the text {text[position : position + 20]!r}")
        position, kind, piece = token.end(), token.lastgroup, token[0]
        is_declaration = bool(words) and words[0].startswith(".") and "=" not in words
        if kind == "skip":
            continue
        if kind == "line" and not depth:
            yield "line", piece.strip()
        elif kind == "label" and not words:
            yield "label", piece.rstrip(": \t")
        elif piece == "{" and not depth and (not words or is_declaration):
            yield "open", " ".join(words)
            words = []
        elif piece == "}" and not depth:
            yield "close", " ".join(words)
            words = []
        elif piece == ";":
            yield "end", _BRACES.sub("", " ".join(words))
            words = []
        else:
            depth += (piece == "{") - (piece == "}")
            words.append(piece)


def _split(text: str) -> list[str]:
    """Return what commas separate outside of brackets."""
    parts, depth = [""], 0
    for character in text:
        depth += (character in "[{(") - (character in "]})")
        if character == "," and not depth:
            parts.append("")
        else:
            parts[-1] += character
    return [part.strip() for part in parts if part.strip()]


# ---------------------------------------------------------------------------------- declarations

_VARIABLE = re.compile(
    r"\.(?P<type>\w+)(?: \.ptr)?(?: \.(?:global|shared|const|local))?(?: \.align (?P<points>\d+))? "
    r"(?P<name>[\w$%]+)(?P<extents>(?: ?\[\d*\])*)(?: = (?P<data>.*))?$"
)
_ALIGN = re.compile(r"\.align (\d+) ")
_ATTRIBUTE = re.compile(r"\.attribute ?\([^)]*\) ?|\.(?:visible|extern|weak|common|volatile) ")


def _variable(text: str) -> Variable:
    """Read a declaration such as `.shared .align 4 .b8 tile[4096]`."""
    space, _, rest = _ATTRIBUTE.sub("", text).lstrip(".").partition(" ")
    stated = _ALIGN.match(rest)
    declared = _VARIABLE.match(rest[stated.end() :] if stated else rest)
    if declared is None or declared["type"] not in SIZES:
        raise NotEmulated(f"the declaration {text}")
    width = SIZES[declared["type"]]
    extents = [int(extent or 0) for extent in re.findall(r"\[(\d*)\]", declared["extents"])]
    data = _data(declared["data"], width) if declared["data"] else b""
    size = width * math.prod(extents)
    return Variable(
        declared["name"],
        "param" if space == "reg" else space,  # type: ignore[arg-type]
        max(size, len(data)),
        int(stated[1]) if stated else width,
        data,
    )


def _data(text: str, width: int) -> bytes:
    """Return the bytes of an initial value."""
    values = []
    for word in text.replace("{", " ").replace("}", " ").replace(",", " ").split():
        bits = read_number(word)
        if bits is None:
            raise NotEmulated(f"the initial value {word}")
        values.append((bits % (1 << 8 * width)).to_bytes(width, "little"))
    return b"".join(values)


_INTEGER = re.compile(r"-?(?:0[xX][0-9a-fA-F]+|0[bB][01]+|\d+)U?$")
_FLOAT = re.compile(r"0[fF][0-9a-fA-F]{8}$|0[dD][0-9a-fA-F]{16}$")


def read_number(text: str) -> int | None:
    """Return the bits of a literal, as an integer; None if the text is none."""
    if _FLOAT.match(text):
        return int(text[2:], 16)
    if not _INTEGER.match(text):
        return None
    digits = text.rstrip("U")
    is_octal = re.fullmatch(r"-?0[0-7]+", digits) is not None
    return int(digits, 8) if is_octal else int(digits, 0)


# -------------------------------------------------------------------------------------- functions

_HEADER = re.compile(
    r"\.(?P<kind>entry|func) (?:\((?P<results>[^)]*)\) ?)?(?P<name>[\w$]+) ?"
    r"(?:\((?P<parameters>[^)]*)\))?(?P<rest>.*)$"
)
_THREADS = re.compile(r"\.reqntid ((?:\d+(?: ?, ?)?)+)")
_REGISTERS = re.compile(r"([\w$%]+)(?:<(\d+)>)?$")
_NAME = re.compile(r"(?<![\w$.])[A-Za-z_$%][\w$]*")
_PLACE = re.compile(r"\.loc\s+(\d+)\s+(\d+)(?:.*inlined_at\s+(\d+)\s+(\d+))?")
_OF_THE_KERNEL = "1"  # number of the file


@dataclass(frozen=True)
class _Scope:
    """A pair of braces: what it declares, and the end of names by which they are unique."""

    suffix: str
    names: dict[str, str] = field(default_factory=dict)


class _Body:
    """Reads a function; a name that an inner scope declares is made unique."""

    def __init__(self, header: str) -> None:
        match = _HEADER.search(re.sub(r"\(\s+", "(", header.replace("( ", "(")))
        if match is None:
            raise NotEmulated(f"the function {header}")
        self._header = match
        self._registers: dict[str, str] = {}
        self._variables: list[Variable] = []
        self._blocks: list[list[Instruction]] = [[]]
        self._labels: dict[str, int] = {}
        self._tables: dict[str, tuple[str, ...]] = {}
        self._scopes: list[_Scope] = [_Scope("")]
        self._opened = 0
        self._jumps: list[tuple[int, int, tuple[str, ...]]] = []
        self._line = 0
        self._is_line_ahead = False

    def read(self, statements: Iterator[_Statement]) -> Function:
        label = ""
        for kind, text in statements:
            if kind == "open":
                self._opened += 1
                self._scopes.append(_Scope(f"@{self._opened}"))
            elif kind == "close":
                self._scopes.pop()
                if not self._scopes:
                    break
            elif kind == "line":
                self._place(text)
            elif kind == "label":
                label = self._label(text)
            elif text.startswith(".branchtargets"):
                self._tables[label] = tuple(_split(text.removeprefix(".branchtargets")))
            elif text.startswith("."):
                self._declare(text)
            elif text:
                self._add(self._renamed(text))
        return self._function()

    def _function(self) -> Function:
        header, threads = self._header, _THREADS.search(self._header["rest"])
        for block, position, suffixes in self._jumps:
            jump = self._blocks[block][position]
            names = [jump.operands[0] + suffix for suffix in suffixes]
            target = next((name for name in names if name in self._labels), None)
            if target is None:
                raise NotEmulated(f"a label that is not there: {jump.text}")
            self._blocks[block][position] = replace(jump, operands=(target,))
        return Function(
            name=header["name"],
            is_entry=header["kind"] == "entry",
            parameters=tuple(map(_variable, _split(header["parameters"] or ""))),
            results=tuple(map(_variable, _split(header["results"] or ""))),
            registers=self._registers,
            variables=tuple(self._variables),
            blocks=(*map(tuple, self._blocks), (Instruction("ret", "ret", (), ()),)),
            labels=self._labels,
            tables=self._tables,
            threads=tuple(map(int, re.findall(r"\d+", threads[1]))) if threads else (),
        )

    def _place(self, directive: str) -> None:
        if place := _PLACE.match(directive):
            file, line, outer_file, outer_line = place.groups()
            if file == _OF_THE_KERNEL:
                # 0 is what the compiler adds. Where a block begins, it is for what follows.
                if int(line) and self._is_line_ahead:
                    self._blocks[-1] = [replace(i, line=int(line)) for i in self._blocks[-1]]
                self._is_line_ahead = not int(line) and not self._blocks[-1]
                self._line = int(line) or self._line
            elif outer_file == _OF_THE_KERNEL:
                self._line = int(outer_line)

    def _unique(self, name: str) -> str:
        """Declare a name in the present scope."""
        scope = self._scopes[-1]
        scope.names[name] = f"{name}{scope.suffix}"
        return scope.names[name]

    def _renamed(self, text: str) -> str:
        names = {old: new for scope in self._scopes[1:] for old, new in scope.names.items()}
        return _NAME.sub(lambda name: names.get(name[0], name[0]), text) if names else text

    def _label(self, name: str) -> str:
        if self._blocks[-1]:
            self._blocks.append([])
        name += self._scopes[-1].suffix
        self._labels[name] = len(self._blocks) - 1
        return name

    def _declare(self, text: str) -> None:
        if text.startswith(".reg"):
            _, kind, names = text.split(" ", 2)
            if kind[1:] not in SIZES:
                raise NotEmulated(f"registers of type {kind}")
            for name in _split(names):
                match = _REGISTERS.match(name)
                if match is None:
                    raise NotEmulated(f"the declaration {text}")
                many = [f"{match[1]}{i}" for i in range(int(match[2]))] if match[2] else [match[1]]
                self._registers |= {self._unique(one): kind[1:] for one in many}
        elif text.startswith((".shared", ".local", ".param")):
            variable = _variable(text)
            self._variables.append(replace(variable, name=self._unique(variable.name)))
        elif not text.startswith((".pragma", ".callprototype")):
            raise NotEmulated(f"the directive {text}")

    def _add(self, text: str) -> None:
        guard, rest = "", text
        if text.startswith("@"):
            guard, _, rest = text[1:].partition(" ")
        operation, _, operands = rest.partition(" ")
        opcode, *modifiers = operation.split(".")
        instruction = Instruction(
            text=text,
            opcode=opcode,
            modifiers=tuple(modifiers),
            operands=tuple(_split(operands)),
            guard=guard.removeprefix("!"),
            negated=guard.startswith("!"),
            line=self._line,
        )
        if opcode == "bra":
            # Its label may come later, so it is looked for in the end.
            suffixes = tuple(scope.suffix for scope in reversed(self._scopes))
            self._jumps.append((len(self._blocks) - 1, len(self._blocks[-1]), suffixes))
        self._blocks[-1].append(instruction)
        if opcode in _ENDS_A_BLOCK and "warp" not in modifiers:
            self._blocks.append([])


def read_ptx(text: str) -> Module:
    """Read a module.

    Raises:
        NotEmulated: The text is no PTX, or has a declaration that is not known.
    """
    target = ""
    functions: dict[str, Function] = {}
    variables: list[Variable] = []
    statements = _statements(text)
    for kind, statement in statements:
        if kind == "line" and statement.startswith(".target"):
            target = statement.split()[1].rstrip(",")
        elif kind == "open" and re.search(r"\.(?:entry|func)\b", statement):
            function = _Body(statement).read(statements)
            functions[function.name] = function
        elif kind == "end" and re.search(r"\.(?:const|global|shared)\b", statement):
            variables.append(_variable(statement))
    if not functions:
        raise NotEmulated("a text without a function of PTX")
    return Module(target, functions, tuple(variables))
