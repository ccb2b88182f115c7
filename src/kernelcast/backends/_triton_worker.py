"""The child that imports a Triton kernel: compiles it ahead of time, or interprets it on the CPU.

A Triton kernel is Python, so an import runs it: that happens here and never in the parent. The
parent leaves `job.json` and `kernel.py` in the working folder. `compile` writes Triton's output
(kernel.ptx or kernel.amdgcn) and kernel.json. `interpret` (with TRITON_INTERPRET=1) runs the grid
on the memory that it inherits, one program after the other. Status 2 and a message on stderr mean
that the kernel does not fit the problem. The job says where packages are, so NumPy and Triton are
imported late.
"""

import importlib
import importlib.util
import json
import mmap
import sys
from pathlib import Path
from typing import Any, NoReturn

_DOES_NOT_FIT = 2


def _kernel(job: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
    """The job's entry, and its constants by name; exits if its parameters do not fit."""
    spec = importlib.util.spec_from_file_location("kernel", "kernel.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    entry: Any = getattr(module, job["entry"], None)
    if not hasattr(entry, "arg_names"):
        _refuse(f"there is no @triton.jit function {job['entry']!r}")
    names: list[str] = entry.arg_names
    arguments, dimensions, constants = job["arguments"], job["dimensions"], job["constants"]
    passed = len(arguments) + len(dimensions)
    if len(names) < passed or not constants.keys() >= {*names[passed:]}:
        _refuse(
            f"{job['entry']} takes {', '.join(names)}; it is handed {len(arguments)} pointers, "
            f"{len(dimensions)} integers, and by LAUNCH's constants "
            f"{', '.join(constants) or 'nothing'}"
        )
    return entry, {name: constants[name] for name in names[passed:]}


def _refuse(message: str) -> NoReturn:
    sys.stderr.write(f"{message}\n")
    raise SystemExit(_DOES_NOT_FIT)


def compile_ahead(job: dict[str, Any]) -> None:
    """Compile for the job's target, as Triton would for these pointers and dimensions."""
    triton = importlib.import_module("triton")
    compiler = importlib.import_module("triton.compiler")
    targets = importlib.import_module("triton.backends.compiler")
    # The key of a lasting cache: a hash of all of Triton, 500 MB. This cache ends with the build.
    cache: Any = importlib.import_module("triton.runtime.cache")
    cache.triton_key = str
    entry, constants = _kernel(job)
    pointers = [f"*{element}" for element in job["arguments"]]
    kinds = [*pointers, *[job["integer"]] * len(job["dimensions"]), *["constexpr"] * len(constants)]
    aligned = [*range(len(pointers)), *(len(pointers) + index for index in job["divisible"])]
    compiled = triton.compile(
        compiler.ASTSource(
            fn=entry,
            signature=dict(zip(entry.arg_names, kinds, strict=True)),
            constexprs=constants,
            attrs={(index,): [["tt.divisibility", 16]] for index in aligned},
        ),
        target=targets.GPUTarget(*job["target"]),
        options=job["options"],
    )
    for kind in ("ptx", "amdgcn"):
        if kind in compiled.asm:
            Path(f"kernel.{kind}").write_text(compiled.asm[kind])
    metadata = compiled.metadata
    facts = {
        "name": metadata.name,
        "shared": metadata.shared,
        "warps": metadata.num_warps,
        "scratch": metadata.global_scratch_size + metadata.profile_scratch_size,
        "blocks_a_cluster": metadata.num_ctas,
    }
    Path("kernel.json").write_text(json.dumps(facts))


class _Tensor:
    """As much of a tensor as Triton's interpreter asks for, over memory that stays in place.

    The interpreter makes a copy by `new_empty` and `set_`, and writes it back by `copy_`. Here the
    copy is the tensor itself.
    """

    def __init__(self, array: Any, dtype: str) -> None:
        self._array = array
        self.dtype = dtype
        self.shape: tuple[int, ...] = array.shape

    def data_ptr(self) -> int:
        return int(self._array.ctypes.data)

    def untyped_storage(self) -> "_Tensor":
        return self

    def cpu(self) -> "_Tensor":
        return self

    def new_empty(self, _size: int, device: str) -> "_Tensor":
        del device
        return _Tensor(self._array, self.dtype)

    def set_(self, *_view: object) -> None:
        pass

    def copy_(self, _other: object) -> None:
        pass

    def storage_offset(self) -> int:
        return 0

    def size(self) -> tuple[int, ...]:
        return self.shape

    def stride(self) -> tuple[int, ...]:
        return tuple(int(step) // self._array.itemsize for step in self._array.strides)


def _keep_conditions() -> None:
    """Keep a scalar condition a condition when it is spread over a block.

    Triton 3.9's interpreter takes it for an integer, and refuses the mask that contains it.
    """
    builder = importlib.import_module("triton.runtime.interpreter").InterpreterBuilder
    spread = builder.create_splat

    def create_splat(self: Any, kind: Any, value: Any) -> Any:
        block = spread(self, kind, value)
        if value.data.dtype == bool:
            block.data = block.data.astype(bool)
        return block

    builder.create_splat = create_splat


def _round_to_nearest() -> None:
    """Round to bfloat16 and float8 as GPUs do, where what is too large for float8 is the largest.

    Triton 3.9's interpreter cuts off what bfloat16 does not hold, and loses carries in float8.
    """
    np, narrow = map(importlib.import_module, ("numpy", "ml_dtypes"))
    interpreter: Any = importlib.import_module("triton.runtime.interpreter")
    kinds = {"fp32": np.float32, "fp16": np.float16, "bf16": narrow.bfloat16}
    saturating = {"fp8e4nv": narrow.float8_e4m3fn, "fp8e5": narrow.float8_e5m2}
    kinds |= saturating
    convert = interpreter._convert_float

    def convert_float(data: Any, source: Any, target: Any, mode: Any) -> Any:
        to_zero = mode == interpreter._ir.ROUNDING_MODE.RTZ
        if to_zero or source.name not in kinds or target.name not in kinds:
            return convert(data, source, target, mode)
        numbers = data.view(kinds[source.name]).astype(np.float32)
        kind = kinds[target.name]
        if target.name in saturating:
            largest = float(narrow.finfo(kind).max)
            numbers = np.clip(numbers, -largest, largest)
        return numbers.astype(kind).view(f"u{np.dtype(kind).itemsize}")

    interpreter._convert_float = convert_float


def interpret(job: dict[str, Any]) -> None:
    """Run the whole grid on the arrays of the one slot in the inherited memory."""
    np = importlib.import_module("numpy")
    _keep_conditions()
    _round_to_nearest()
    entry, constants = _kernel(job)
    memory = np.frombuffer(mmap.mmap(job["memory_fd"], 0), dtype=np.uint8)
    spans = zip(job["arguments"], job["widths"], job["offsets"], job["lengths"], strict=True)
    tensors = [  # the interpreter reads bits by their address
        _Tensor(memory[offset : offset + length].view(f"u{width}"), dtype)
        for dtype, width, offset, length in spans
    ]
    entry[tuple(job["grid"])](*tensors, *job["dimensions"], **constants)


if __name__ == "__main__":
    job = json.loads(Path("job.json").read_text())
    sys.path[:0] = job["paths"]
    {"compile": compile_ahead, "interpret": interpret}[sys.argv[1]](job)
