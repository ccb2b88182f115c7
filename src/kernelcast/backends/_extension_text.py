"""What the text of a module's extension shows without a compiler: what no compiler would accept.

`load_inline` puts `cpp_sources` and the bindings of `functions` into one file for the C++ compiler,
and `cuda_sources` into one for nvcc. A check that is not sure says nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

from kernelcast.canonical import Token
from kernelcast.canonical import tokens as lexed

_OPEN, _CLOSED = "([{", ")]}"
_TORCH_CUDA = ("ATen/cuda", "c10/cuda", "ATen/native/cuda")
# Names that need a header which neither PyTorch's nor nvcc's own headers include.
_NEEDED: dict[tuple[str, ...], tuple[str, ...]] = {
    ("C10_CUDA_CHECK",): _TORCH_CUDA,
    ("C10_CUDA_KERNEL_LAUNCH_CHECK",): _TORCH_CUDA,
    ("AT_CUDA_CHECK",): _TORCH_CUDA,
    ("at", "::", "cuda", "::"): _TORCH_CUDA,
    ("c10", "::", "cuda", "::"): _TORCH_CUDA,
    ("cub", "::"): ("cub/", "thrust/"),
    ("thrust", "::"): ("thrust/",),
    ("cooperative_groups", "::"): ("cooperative_groups",),
    ("curand_init",): ("curand",),
    ("wmma", "::", "fragment"): ("mma.h",),
}
_BINDING = "PYBIND11_MODULE"
_UNKNOWN_BINDINGS = {"TORCH_LIBRARY", "TORCH_LIBRARY_FRAGMENT", "class_", "PyInit"}
_AFTER_PARAMETERS = {"{", "const", "noexcept", "->", "try"}
_SPACES = {"torch", "at", "c10", "std"}
_SAME_TYPE = {"long": "int64_t", "long int": "int64_t", "unsigned int": "unsigned"}
_QUALIFIERS = {"const", "inline", "static"}
_TENSOR, _INTEGERS = "Tensor", {"int", "int64_t", "bool", "unsigned", "size_t", "int32_t"}
_NUMBERS = _INTEGERS | {"float", "double"}
_TYPE_NAMES = _NUMBERS | {"long", "char", "short", _TENSOR}


@dataclass(frozen=True)
class Extension:
    """What a module told `load_inline`, or `load` with the texts of the files that it named."""

    name: str
    cpp: tuple[str, ...]
    cuda: tuple[str, ...]
    functions: tuple[str, ...] | None
    whole: bool

    @property
    def fault(self) -> str:
        """Why it cannot be built or loaded; empty if nothing is seen."""
        return next(self._faults(), "")

    def call_fault(self, name: str, kinds: Sequence[str]) -> str:
        """Why a function cannot be called with positional arguments of these kinds."""
        if name not in self.bound:
            if self._binds_all and self.whole:
                return f"AttributeError: the extension {self.name!r} binds no {name}"
            return ""
        parameters = self._parameters(self.bound[name])
        if parameters is None or self._named_arguments:
            return ""
        wanted = f"{name}() takes {len(parameters)} arguments"
        if len(parameters) != len(kinds):
            return f"TypeError: {wanted}, and is called with {len(kinds)}"
        for place, (parameter, kind) in enumerate(zip(parameters, kinds, strict=True), 1):
            bare = parameter.rstrip("&").strip()
            not_tensor = bare == _TENSOR and kind in ("int", "float", "bool", "None", "str")
            not_integer = bare in _INTEGERS and kind in ("float", "None", "str")
            not_number = bare in _NUMBERS and kind in ("None", "str")
            if not_tensor or not_integer or not_number:
                return f"TypeError: {wanted}; argument {place} is {kind}, not {bare}"
        return ""

    @cached_property
    def bound(self) -> dict[str, str]:
        """The C++ function behind each name that Python sees."""
        bound = {name: name for name in self.functions or ()}
        for tokens in self._files:
            for at, token in enumerate(tokens):
                if token.text == "def" and _texts(tokens, at + 1, 1) == ["("]:
                    words = _texts(tokens, at + 2, 12)
                    if len(words) > 3 and words[0].startswith('"') and words[1] == ",":
                        target = words[3:] if words[2] == "&" else words[2:]
                        bound[words[0].strip('"')] = _last_name(target)
        return bound

    @cached_property
    def _cpp(self) -> tuple[Token, ...]:
        return _lexed(self.cpp)

    @cached_property
    def _cuda(self) -> tuple[Token, ...]:
        return _lexed(self.cuda)

    @property
    def _files(self) -> tuple[tuple[Token, ...], ...]:
        return self._cpp, self._cuda

    @cached_property
    def _words(self) -> set[str]:
        return {token.text for tokens in self._files for token in tokens}

    @property
    def _binds_all(self) -> bool:
        return not self._words & _UNKNOWN_BINDINGS and all(self.bound.values())

    @property
    def _named_arguments(self) -> bool:
        """Whether bindings state names or defaults of arguments."""
        return "arg" in self._words or "_a" in self._words

    @property
    def _generates(self) -> bool:
        """Whether macros may make names, or headers that are not known may define them."""
        return any(
            token.kind == "directive" and ("##" in token.text or '"' in token.text.split("//")[0])
            for tokens in self._files
            for token in tokens
        )

    def _faults(self) -> Iterator[str]:
        for where, tokens in (("cpp_sources", self._cpp), ("cuda_sources", self._cuda)):
            if fault := _unbalanced(tokens):
                yield f"{where}: {fault}"
        if any(token.text == "<<<" for token in self._cpp):
            yield "cpp_sources: a launch <<<...>>> is no C++: nvcc compiles cuda_sources alone"
        yield from self._missing_headers()
        if self.whole:
            yield from self._bad_bindings()

    def _missing_headers(self) -> Iterator[str]:
        for where, tokens in (("cpp_sources", self._cpp), ("cuda_sources", self._cuda)):
            directives = " ".join(token.text for token in tokens if token.kind == "directive")
            if 'include "' in directives:
                continue
            texts = [token.text for token in tokens]
            for names, headers in _NEEDED.items():
                length = len(names)
                used = any(
                    text == names[0] and tuple(texts[at : at + length]) == names
                    for at, text in enumerate(texts)
                )
                defined = f"define {names[0]}" in directives
                aliased = length == 1 or names[0] not in ("at", "c10")
                if used and not defined and not any(header in directives for header in headers):
                    if aliased and "namespace" in texts and names[0] in _spaces_made(texts):
                        continue
                    yield f"{where}: {''.join(names)} is used without #include <{headers[0]}...>"

    def _bad_bindings(self) -> Iterator[str]:
        bindings = [token.text == _BINDING for tokens in self._files for token in tokens]
        if sum(bindings) + (self.functions is not None) > 1 and "ifdef" not in " ".join(self.cpp):
            yield "it has two PYBIND11_MODULE: `functions` makes one too"
        if self._generates:
            return
        main = [token.text for token in self._cpp]
        if _BINDING in main:
            main = main[: main.index(_BINDING)]
        declared = {name for name, after in pairwise(main) if after == "("}
        every = [token.text for tokens in self._files for token in tokens]
        called = {name for name, after in pairwise(every) if after == "("}
        for name in self.functions or ():
            if name not in declared:
                yield f"`functions` names {name}, which cpp_sources do not declare"
        for name in self.bound.values():
            if not name or not called & {name}:
                continue
            definitions = list(self._signatures(name, defined=True))
            if not definitions:
                yield f"{name} is bound and declared, but not defined"
                continue
            declarations = list(_signatures(self._cpp, name, defined=False))
            in_main = list(_signatures(self._cpp, name, defined=True))
            if declarations and not in_main and not any(one in definitions for one in declarations):
                wanted, made = (", ".join(each[0]) for each in (declarations, definitions))
                yield f"{name}({wanted}) is declared, but {name}({made}) is defined"

    def _signatures(self, name: str, *, defined: bool) -> Iterator[tuple[str, ...]]:
        for tokens in self._files:
            yield from _signatures(tokens, name, defined=defined)

    def _parameters(self, name: str) -> tuple[str, ...] | None:
        """The parameters of a function that is declared or defined once."""
        found = {*self._signatures(name, defined=False), *self._signatures(name, defined=True)}
        return found.pop() if len(found) == 1 else None


def _lexed(texts: Sequence[str]) -> tuple[Token, ...]:
    return lexed("\n".join(texts), "cuda")


def _texts(tokens: Sequence[Token], start: int, count: int) -> list[str]:
    return [token.text for token in tokens[start : start + count]]


def _last_name(words: Sequence[str]) -> str:
    """The name of a function in a binding: `ns::f<float>` is f; empty for a lambda."""
    name = ""
    for word in words:
        if word in (",", ")", "<"):
            return name
        if word == "[":
            return ""
        name = word
    return name


def _spaces_made(texts: Sequence[str]) -> set[str]:
    return {after for word, after in pairwise(texts) if word == "namespace"}


def _unbalanced(tokens: Sequence[Token]) -> str:
    """A bracket without its partner; nothing where alternatives of the preprocessor may hide it."""
    if any(token.kind == "directive" and "if" in token.text[:6] for token in tokens):
        return ""
    waiting: list[str] = []
    for token in tokens:
        if token.kind != "punctuator":
            continue
        if token.text in _OPEN:
            waiting.append(token.text)
        elif token.text in _CLOSED and (
            not waiting or _OPEN.index(waiting.pop()) != _CLOSED.index(token.text)
        ):
            return f"a {token.text!r} closes nothing"
    return f"a {waiting[-1]!r} is never closed" if waiting else ""


def _signatures(tokens: Sequence[Token], name: str, *, defined: bool) -> Iterator[tuple[str, ...]]:
    """The types of the parameters of each declaration or definition of a function."""
    for at in range(1, len(tokens) - 1):
        if tokens[at].text != name or tokens[at + 1].text != "(":
            continue
        if tokens[at - 1].kind != "identifier" and tokens[at - 1].text not in (">", "*", "&"):
            continue
        if tokens[at - 1].text in ("return", "else"):
            continue
        depth, end = 0, at + 1
        while end < len(tokens):
            text = tokens[end].text
            depth += (text in ("(", "[", "{")) - (text in (")", "]", "}"))
            if depth == 0:
                break
            end += 1
        after = tokens[end + 1].text if end + 1 < len(tokens) else ""
        if (after in _AFTER_PARAMETERS) == defined and (defined or after == ";"):
            yield tuple(_types([token.text for token in tokens[at + 2 : end]]))


def _types(words: Sequence[str]) -> Iterator[str]:
    """The types of parameters, without names, defaults and what does not tell functions apart."""
    part: list[str] = []
    depth = 0
    for word in (*words, ","):
        if word == "," and depth == 0:
            if part:
                yield _type(part)
            part = []
            continue
        depth += (word in ("(", "[", "{", "<")) - (word in (")", "]", "}"))
        depth -= word.count(">") if set(word) == {">"} else 0
        part.append(word)


def _type(words: list[str]) -> str:
    if "=" in words:
        words = words[: words.index("=")]
    by_value = not any(word in ("&", "*", "&&") for word in words)
    kept: list[str] = []
    for at, word in enumerate(words):
        is_space = word in _SPACES and words[at + 1 : at + 2] == ["::"]
        if is_space or (word == "::" and words[at - 1] in _SPACES):
            continue
        if word in _QUALIFIERS and by_value:
            continue
        kept.append(word)
    # The last identifier is the parameter's name, unless it is the type itself.
    is_named = len(kept) > 1 and kept[-1].isidentifier() and kept[-2] != "::"
    if is_named and kept[-1] not in _TYPE_NAMES:
        kept.pop()
    text = " ".join(sorted(kept, key=lambda word: word != "const"))
    return _SAME_TYPE.get(text, text)
