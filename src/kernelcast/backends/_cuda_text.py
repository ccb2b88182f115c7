r"""Child-side: CUDA text as C++ that g++ compiles with the headers in `headers/cuda`.

A launch becomes a call, `kernel<<<grid, block>>>(x)` -> `kc::launch("kernel", kc::Config(grid,
block), ..., x)`; a `__shared__` variable becomes a reference to its place in the block's memory.
The rest is done by the headers. Lines keep their numbers.
"""

import re

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

FORCED = ("-include", "torch/extension.h", "-include", "kernelcast_cuda.h")
"""Options: PyTorch's short header is included first, then what CUDA offers without an #include."""

_COMMENT = re.compile(r'"(?:\\.|[^"\\\n])*"|//[^\n]*|/\*.*?\*/', re.S)
_INCLUDE = re.compile(r'^([ \t]*#[ \t]*include[ \t]*)[<"]([^>"\n]+)[>"]', re.M)
# Headers whose content is always there, and those whose content is in another one.
_ALWAYS = {
    *("cuda.h", "cuda_runtime.h", "cuda_runtime_api.h", "device_launch_parameters.h"),
    *("vector_types.h", "vector_functions.h", "device_functions.h", "math_functions.h"),
    *("driver_types.h", "device_atomic_functions.h", "sm_60_atomic_functions.h"),
}
_ELSEWHERE = {
    "cooperative_groups/reduce.h": "cooperative_groups.h",
    "ATen/cuda/CUDAContextLight.h": "ATen/cuda/CUDAContext.h",
    "curand.h": "curand_kernel.h",
    "curand_philox4x32_x.h": "curand_kernel.h",
    "cuda_fp16.hpp": "cuda_fp16.h",
}
_ALIGN = r"(?:__align__|alignas)\s*\((?:[^()]|\([^()]*\))*\)"
_SHARED = re.compile(
    rf"\b(?P<extern>extern\s+)?(?:static\s+)?__shared__\s+(?:{_ALIGN}\s*)?"
    r"(?P<type>(?:volatile\s+|const\s+)?(?:typename\s+)?(?:unsigned\s+|signed\s+|long\s+(?=long|int|double))?"
    r"[\w:]+(?:\s*<[^;{}]*?>)?(?:::\w+)*(?:\s+(?:long|int|char|short))?)"
    rf"\s*(?:{_ALIGN}\s*)?(?P<rest>[\s*&]*\b\w+[^;]*);"
)
_EXTENTS = r"(?:\s*\[[^\]]*\])*"
_REPLACED = (
    (re.compile(r"(?<!\w)__align__\s*\("), "alignas("),
    (re.compile(r"\bstatic\s+(?=(?:const\s+)?(?:__constant__|__managed__))"), ""),
    (re.compile(r"(\b(?:__constant__|__managed__)\s+)static\s+"), r"\1"),
    (re.compile(r'\bextern\s*"C"\s*(?=__global__|__device__|__constant__)'), ""),
    (re.compile(r"\bis_cuda\s*\(\s*\)"), "is_cpu()"),
    (re.compile(r"\bkCUDA\b"), "kCPU"),
    (re.compile(r"\bDeviceType::CUDA\b"), "DeviceType::CPU"),
)
_OPENING, _CLOSING = "([{", ")]}"


class Unknown(Exception):
    """Text that cannot be made C++; the message says why."""


def cpp(text: str) -> str:
    """The text of a CUDA or C++ file as C++."""
    text = _COMMENT.sub(_without_comment, text)
    if re.search(r"\basm\s*(?:volatile|__volatile__)?\s*\(|\b__asm__\b", text):
        raise Unknown("it has PTX in its text")
    if "__shared__" in text and re.search(r"\bvolatile\b", text):
        raise Unknown("volatile shared memory: it may rely on the lockstep of a warp")
    text = _INCLUDE.sub(_include, text)
    text = _SHARED.sub(_shared, text)
    if "__shared__" in text:
        raise Unknown("a __shared__ declaration of an unknown form")
    for pattern, replacement in _REPLACED:
        text = pattern.sub(replacement, text)
    return _with_launches(text)


def _without_comment(match: "re.Match[str]") -> str:
    found = match[0]
    return found if found.startswith('"') else " " + "\n" * found.count("\n")


def _include(match: "re.Match[str]") -> str:
    name = match[2]
    if name in _ALWAYS:
        return ""
    name = "cub/cub.cuh" if name.startswith("cub/") else _ELSEWHERE.get(name, name)
    return match[0] if name == match[2] else f"{match[1]}<{name}>"


def _shared(match: "re.Match[str]") -> str:
    kind, rest = match["type"], match["rest"]
    lines = "\n" * match[0].count("\n")
    if match["extern"]:
        (name,) = re.findall(r"\w+", rest)[:1]
        return f"{kind}* const {name} = ({kind}*)::kc::dynamic_shared;{lines}"
    made = []
    for part in _parts(rest):
        declared = re.fullmatch(rf"(\s*\**\s*)(\w+)({_EXTENTS})\s*", part)
        if declared is None:
            raise Unknown("a __shared__ declaration of an unknown form")
        stars, name, extents = declared.groups()
        made.append(
            f"static ::kc::Shared kc_{name}; auto& {name} = "
            f"kc_{name}.template get<{kind}{stars.strip()}{extents.strip()}>();"
        )
    return " ".join(made) + lines


def _parts(text: str) -> "Iterator[str]":
    """The parts of a text that commas separate, but not those within brackets."""
    depth = start = 0
    for index, letter in enumerate(text):
        depth += (letter in _OPENING) - (letter in _CLOSING)
        if letter == "," and depth == 0:
            yield text[start:index]
            start = index + 1
    yield text[start:]


def _with_launches(text: str) -> str:
    while (start := text.find("<<<")) >= 0:
        first = _callee(text, start)
        name = " ".join(text[first:start].split())
        end = _end_of_configuration(text, start + 3)
        opening = re.compile(r"\s*\(").match(text, end + 3)
        if not name or opening is None:
            raise Unknown("a launch of an unknown form")
        closing = _matching(text, opening.end() - 1)
        arguments = text[opening.end() : closing]
        configuration = text[start + 3 : end]
        lines = "\n" * text[first : opening.end()].count("\n")
        lines = lines[configuration.count("\n") :]
        told = name.replace('"', "")
        call = (
            f'::kc::launch("{told}", ::kc::Config({configuration}), '
            f"[&](auto&... kc_a) {{ {name}(kc_a...); }}{',' if arguments.strip() else ''}{lines}"
        )
        text = text[:first] + call + text[opening.end() :]
    return text


def _callee(text: str, end: int) -> int:
    """Where the name before a launch begins, with its template's arguments."""
    index = end - 1
    while text[index].isspace():
        index -= 1
    if text[index] == ">":
        depth = 0
        while index > 0:
            depth += (text[index] == ">") - (text[index] == "<")
            if depth == 0:
                break
            index -= 1
        index -= 1
        while index > 0 and text[index].isspace():
            index -= 1
    while index >= 0 and (text[index].isalnum() or text[index] in "_:"):
        index -= 1
    return index + 1


def _end_of_configuration(text: str, start: int) -> int:
    depth = 0
    for index in range(start, len(text)):
        letter = text[index]
        depth += (letter in _OPENING) - (letter in _CLOSING)
        if depth == 0 and text.startswith(">>>", index):
            return index
    raise Unknown("a launch without its end")


def _matching(text: str, opening: int) -> int:
    depth = 0
    for index in range(opening, len(text)):
        depth += (text[index] in _OPENING) - (text[index] in _CLOSING)
        if depth == 0:
            return index
    raise Unknown("a launch without its end")
