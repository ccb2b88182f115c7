"""The child that imports a Triton kernel: compiles it ahead of time, or interprets it on the CPU.

A Triton kernel is Python, so importing it runs it: that happens here and never in the parent. The
parent leaves `job.json` and `kernel.py` in the working folder. `compile` writes what Triton made
(kernel.ptx or kernel.amdgcn) and kernel.json; `interpret` (with TRITON_INTERPRET=1) runs the grid
on the memory that it inherits, one program after the other. A message on stderr and status 2 say
that the kernel does not fit the problem. Packages lie where the job says; NumPy and Triton are
imported after that is known.
"""

import importlib
import importlib.util
import json
import mmap
import sys
from pathlib import Path
from typing import Any, NoReturn

_DOES_NOT_FIT = 2
_POINTERS = {"float32": "*fp32", "float64": "*fp64", "int32": "*i32", "int64": "*i64"}


def _kernel(job: dict[str, Any]) -> Any:
    """The job's entry, with as many parameters as it is handed."""
    spec = importlib.util.spec_from_file_location("kernel", "kernel.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    entry: Any = getattr(module, job["entry"], None)
    if not hasattr(entry, "arg_names"):
        _refuse(f"there is no @triton.jit function {job['entry']!r}")
    names: list[str] = entry.arg_names
    handed = len(job["arguments"]) + len(job["dimensions"])
    missing = [name for name in names[handed:] if name not in job["constants"]]
    if len(names) < handed or missing:
        _refuse(
            f"{job['entry']} takes {', '.join(names)}; it is handed {len(job['arguments'])} "
            f"pointers, {len(job['dimensions'])} integers, and by LAUNCH's constants "
            f"{', '.join(job['constants']) or 'nothing'}"
        )
    return entry


def _refuse(message: str) -> NoReturn:
    sys.stderr.write(f"{message}\n")
    raise SystemExit(_DOES_NOT_FIT)


def compile_ahead(job: dict[str, Any]) -> None:
    """Compile for the job's target, as Triton would for these pointers and dimensions."""
    triton = importlib.import_module("triton")
    compiler = importlib.import_module("triton.compiler")
    targets = importlib.import_module("triton.backends.compiler")
    entry = _kernel(job)
    names = entry.arg_names
    pointers, dimensions = len(job["arguments"]), len(job["dimensions"])
    handed = pointers + dimensions
    kinds = [_POINTERS[each] for each in job["arguments"]] + [job["integer"]] * dimensions
    signature = dict(zip(names[:handed], kinds, strict=True))
    signature |= dict.fromkeys(names[handed:], "constexpr")
    aligned = [*range(pointers), *(pointers + each for each in job["divisible"])]
    compiled = triton.compile(
        compiler.ASTSource(
            fn=entry,
            signature=signature,
            constexprs={name: job["constants"][name] for name in names[handed:]},
            attrs={(index,): [["tt.divisibility", 16]] for index in aligned},
        ),
        target=targets.GPUTarget(*job["target"]),
        options=job["options"],
    )
    for kind in ("ptx", "amdgcn"):
        if kind in compiled.asm:
            Path(f"kernel.{kind}").write_text(compiled.asm[kind])
    metadata = compiled.metadata
    told = {
        "name": metadata.name,
        "shared": metadata.shared,
        "warps": metadata.num_warps,
        "scratch": metadata.global_scratch_size + metadata.profile_scratch_size,
        "blocks_a_cluster": metadata.num_ctas,
    }
    Path("kernel.json").write_text(json.dumps(told))


class Tensor:
    """As much of a tensor as Triton's interpreter asks for, over memory that stays in place."""

    def __init__(self, array: Any) -> None:
        self._array = array
        self.dtype = array.dtype
        self.shape: tuple[int, ...] = array.shape

    def data_ptr(self) -> int:
        """Where the elements lie."""
        return int(self._array.ctypes.data)

    def untyped_storage(self) -> "Tensor":
        """Itself: there is no view of it."""
        return self

    def cpu(self) -> "Tensor":
        """Itself: it lies in the host's memory."""
        return self

    def new_empty(self, _size: int, device: str) -> "Tensor":
        """What the interpreter turns into its own copy of this tensor by `set_`."""
        del device
        return Tensor(self._array)

    def set_(self, *_view: object) -> None:
        """Nothing: the copy is this tensor already."""

    def copy_(self, _other: object) -> None:
        """Nothing: what was computed lies in this memory."""

    def storage_offset(self) -> int:
        """Nought."""
        return 0

    def size(self) -> tuple[int, ...]:
        """Its shape."""
        return self.shape

    def stride(self) -> tuple[int, ...]:
        """Elements from one to the next, along each axis."""
        return tuple(int(each) // self._array.itemsize for each in self._array.strides)


def _keep_conditions() -> None:
    """Let a scalar condition stay one when it is spread over a block.

    Triton 3.9's interpreter takes it for an integer, and refuses the mask it is part of.
    """
    builder = importlib.import_module("triton.runtime.interpreter").InterpreterBuilder
    spread = builder.create_splat

    def create_splat(self: Any, kind: Any, value: Any) -> Any:
        block = spread(self, kind, value)
        if value.data.dtype == bool:
            block.data = block.data.astype(bool)
        return block

    builder.create_splat = create_splat


def interpret(job: dict[str, Any]) -> None:
    """Run the whole grid on the arrays of the one slot in the inherited memory."""
    np = importlib.import_module("numpy")
    _keep_conditions()
    entry = _kernel(job)
    memory = np.frombuffer(mmap.mmap(job["memory_fd"], 0), dtype=np.uint8)
    tensors = [
        Tensor(memory[offset : offset + length].view(dtype))
        for dtype, offset, length in zip(
            job["arguments"], job["offsets"], job["lengths"], strict=True
        )
    ]
    names = entry.arg_names[len(tensors) + len(job["dimensions"]) :]
    constants = {name: job["constants"][name] for name in names}
    entry[tuple(job["grid"])](*tensors, *job["dimensions"], **constants)


if __name__ == "__main__":
    stated = json.loads(Path("job.json").read_text())
    sys.path[:0] = stated["paths"]
    {"compile": compile_ahead, "interpret": interpret}[sys.argv[1]](stated)
