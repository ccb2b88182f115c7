"""Child-side: a problem's PyTorch code, called as its `Module` says.

For processes that may import nothing of ours: a worker, the oracle and the importer. Arguments come
as nested structures (`kernelcast.structure`), and arrays as places in the shared memory.
"""

import ast
import importlib
import sys
import tempfile
import types

TYPE_CHECKING = False
if TYPE_CHECKING:
    import mmap
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from typing import Any

MOST_TEXT = 4000  # characters of a message


def import_torch() -> "Any":
    """Import PyTorch in a process that may start and write nothing.

    PyTorch for CUDA looks for a library by a compiler and a temporary file. It knows what to do
    where none is found. Where dill is installed, PyTorch imports it, and dill asks for the name of
    a folder for temporary files.
    """
    util: Any = importlib.import_module("ctypes.util")
    find, util.find_library = util.find_library, lambda _name: None
    named, tempfile.tempdir = tempfile.tempdir, "/tmp"  # noqa: S108 - a name, nothing is written
    torch = importlib.import_module("torch")
    util.find_library, tempfile.tempdir = find, named
    return torch


class Mismatch(Exception):
    """What the code returned is not what the problem says; the message says how it differs."""


def build(nested: "Any", arrays: "Mapping[str, Any]") -> "Any":
    """Make the arguments that a nested structure describes."""
    if isinstance(nested, list):
        return [build(item, arrays) for item in nested]
    if not isinstance(nested, dict):
        return nested
    ((kind, content),) = nested.items()
    if kind == "array":
        return arrays[content]
    if kind == "torch":
        return getattr(sys.modules["torch"], content)
    if kind == "tuple":
        return tuple(build(item, arrays) for item in content)
    return {build(key, arrays): build(value, arrays) for key, value in content}


def flatten(nested: "Any", value: "Any", where: str = "the result") -> "Iterator[tuple[str, Any]]":
    """Yield each array of a nested structure by name, as a returned value holds it.

    Lists and tuples may stand for each other.

    Raises:
        Mismatch: The value has another structure.
    """
    if isinstance(nested, dict):
        ((kind, content),) = nested.items()
        if kind == "array":
            yield content, value
            return
        if kind == "dict":
            if not isinstance(value, dict):
                raise Mismatch(f"{where} is {_kind(value)}, not a dictionary")
            for key, item in content:
                if key not in value:
                    raise Mismatch(f"{where} has no key {key!r}")
                yield from flatten(item, value[key], f"{where}[{key!r}]")
            return
        nested = content
    if isinstance(nested, list):
        if not isinstance(value, (list, tuple)):
            raise Mismatch(f"{where} is {_kind(value)}, not a sequence of {len(nested)}")
        if len(value) != len(nested):
            raise Mismatch(f"{where} has {len(value)} parts, not {len(nested)}")
        for index, (item, part) in enumerate(zip(nested, value)):  # noqa: B905  (as many)
            yield from flatten(item, part, f"{where}[{index}]")


def returned(nested: "Sequence[Any]", value: "Any") -> "dict[str, Any]":
    """The arrays of a returned value: of one alone, or of a sequence of several."""
    return dict(flatten(nested[0] if len(nested) == 1 else list(nested), value))


def _kind(value: "Any") -> str:
    return "None" if value is None else f"a {type(value).__name__}"


def require(name: str, value: "Any", dtype: "Any", shape: "Sequence[int]") -> None:
    """Raise `Mismatch` unless a value is a tensor of this type and shape."""
    if not isinstance(value, sys.modules["torch"].Tensor):
        raise Mismatch(f"{name} is {_kind(value)}, not a tensor")
    if value.dtype != dtype:
        raise Mismatch(f"{name} is {value.dtype}, not {dtype}")
    if list(value.shape) != list(shape):
        raise Mismatch(f"{name} has shape {tuple(value.shape)}, not {tuple(shape)}")


def tensor(memory: "mmap.mmap", dtype: str, shape: "Sequence[int]", offset: int) -> "Any":
    """A tensor on a part of the memory."""
    torch = sys.modules["torch"]
    count = 1
    for extent in shape:
        count *= extent
    kind = getattr(torch, dtype)
    if count == 0:
        return torch.empty(*shape, dtype=kind)
    return torch.frombuffer(memory, dtype=kind, count=count, offset=offset).view(shape)


def namespace_of(source: str, where: str, dimensions: "Mapping[str, int]") -> "dict[str, Any]":
    """Execute a module's text with these values in place of its own integers of those names."""
    tree = ast.parse(source, where)
    for node in tree.body:
        if isinstance(node, ast.Assign):
            for target in node.targets:
                _replace(target, node.value, dimensions, node)
        elif isinstance(node, ast.AnnAssign) and node.value is not None:
            _replace(node.target, node.value, dimensions, node)
    module = types.ModuleType("reference")
    install_shims(source)
    sys.modules["reference"] = module  # dataclasses look for it
    exec(compile(ast.fix_missing_locations(tree), where, "exec"), module.__dict__)  # noqa: S102
    return module.__dict__


def _replace(
    target: ast.expr,
    value: ast.expr,
    dimensions: "Mapping[str, int]",
    node: "ast.Assign | ast.AnnAssign",
) -> None:
    if isinstance(target, ast.Name) and target.id in dimensions:
        node.value = ast.Constant(dimensions[target.id])
    elif isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple):
        for index, part in enumerate(target.elts):
            if isinstance(part, ast.Name) and part.id in dimensions:
                value.elts[index] = ast.Constant(dimensions[part.id])


def install_shims(source: str) -> None:
    """Offer what GPU MODE's files import from their folder: `task` and `utils`."""
    if "task" not in sys.modules and "task" in source:
        task = types.ModuleType("task")
        for name in ("input_t", "output_t", "TestSpec", "KernelFunction"):
            setattr(task, name, object)
        sys.modules["task"] = task
    if "utils" not in sys.modules and "utils" in source:
        sys.modules["utils"] = _utils()


recorded_tolerances: "list[tuple[float, float]]" = []
"""rtol and atol of each comparison that GPU MODE's helpers were asked for."""


def _utils() -> "Any":
    """GPU MODE's `utils`, as far as tasks and submissions use it."""
    torch = sys.modules["torch"]
    utils: Any = types.ModuleType("utils")

    def verbose_allclose(
        received: "Any", expected: "Any", rtol: float = 1e-5, atol: float = 1e-8, **_: "Any"
    ) -> "list[str]":
        recorded_tolerances.append((rtol, atol))
        if received.shape != expected.shape:
            return [f"SIZE MISMATCH: {tuple(received.shape)}, not {tuple(expected.shape)}"]
        close = torch.isclose(received.double(), expected.double(), rtol, atol, equal_nan=True)
        return [] if close.all() else [f"{int((~close).sum())} elements differ"]

    def verbose_allequal(received: "Any", expected: "Any", *_: "Any", **__: "Any") -> "list[str]":
        return verbose_allclose(received, expected, 0.0, 0.0)

    def match_reference(
        data: "Any", output: "Any", reference: "Any" = None, rtol: float = 1e-5, atol: float = 1e-8
    ) -> "tuple[bool, str]":
        expected = reference(data)
        outputs, wanted = (
            (value if isinstance(value, (list, tuple)) else (value,))
            for value in (output, expected)
        )
        if len(outputs) != len(wanted):
            return False, f"{len(outputs)} outputs, not {len(wanted)}"
        reasons = [
            reason
            for pair in zip(outputs, wanted)  # noqa: B905
            for reason in verbose_allclose(*pair, rtol, atol)
        ]
        return not reasons, " ".join(reasons)

    def make_match_reference(reference: "Any", **tolerance: "Any") -> "Callable[..., Any]":
        def check(data: "Any", output: "Any") -> "tuple[bool, str]":
            return match_reference(data, output, reference, **tolerance)

        return check

    class DeterministicContext:
        def __enter__(self) -> "Any":
            return self

        def __exit__(self, *_: object) -> None:
            pass

    utils.verbose_allclose, utils.verbose_allequal = verbose_allclose, verbose_allequal
    utils.match_reference, utils.make_match_reference = match_reference, make_match_reference
    utils.set_seed = torch.manual_seed
    utils.DeterministicContext = utils.DisableCuDNNTF32 = DeterministicContext
    utils.get_device = lambda **_: torch.device("cpu")
    utils.clear_l2_cache = lambda: None
    return utils


def text_of(error: BaseException, source: str = "") -> str:
    """What was raised, and where in the source, the innermost line last."""
    try:
        message = str(error)
    except BaseException:
        message = ""
    lines = []
    step = error.__traceback__
    texts = source.splitlines()
    while step is not None:
        if step.tb_frame.f_code.co_filename.endswith("kernel.py"):
            number = step.tb_lineno
            text = texts[number - 1].strip() if 0 < number <= len(texts) else ""
            lines.append(f"line {number}, in {step.tb_frame.f_code.co_name}: {text}")
        step = step.tb_next
    head = f"{type(error).__name__}: {message}"
    return "\n".join([head[: MOST_TEXT // 2], *lines[-6:]])[:MOST_TEXT]


# ------------------------------------------------------------------------------- without CUDA

FACTORIES = (
    *("arange", "empty", "empty_like", "empty_strided", "eye", "full", "full_like", "linspace"),
    *("logspace", "normal", "ones", "ones_like", "rand", "rand_like", "randint", "randint_like"),
    *("randn", "randn_like", "randperm", "tensor", "as_tensor", "asarray", "zeros", "zeros_like"),
    *("tril_indices", "triu_indices"),
)
"""Functions of torch that make a tensor on a device that they are told."""
_METHODS = ("to", "new_tensor", "new_empty", "new_full", "new_ones", "new_zeros")


def on_cpu() -> None:
    """Let "cuda" mean the CPU if there is no CUDA, for files that say where their tensors are."""
    torch: Any = sys.modules["torch"]
    if torch.cuda.is_available():
        return
    for name in FACTORIES:
        setattr(torch, name, _moved(torch, getattr(torch, name)))
    for name in _METHODS:
        setattr(torch.Tensor, name, _moved(torch, getattr(torch.Tensor, name)))
    torch.Tensor.cuda = lambda tensor, *_, **__: tensor
    torch.nn.Module.cuda = lambda module, *_: module
    generator = torch.Generator
    # Still a type: it stands in annotations, and code asks whether a value is one.
    torch.Generator = type(
        "Generator",
        (generator,),
        {"__new__": lambda cls, device="cpu": generator.__new__(cls, _cpu(torch, device))},
    )
    default = torch.set_default_device
    torch.set_default_device = lambda device: default(_cpu(torch, device))
    for name in ("synchronize", "empty_cache", "manual_seed", "manual_seed_all"):
        setattr(torch.cuda, name, lambda *_: None)


def pretend_cuda() -> None:
    """Let tensors and devices seem to be CUDA's, as far as modules ask, after `on_cpu`."""
    torch: Any = sys.modules["torch"]
    answers = {
        "is_available": True,
        "device_count": 1,
        "current_device": 0,
        "set_device": None,
        "get_device_capability": (8, 9),
        "get_device_name": "NVIDIA GPU",
        "get_device_properties": types.SimpleNamespace(
            name="NVIDIA GPU", major=8, minor=9, multi_processor_count=128, warp_size=32
        ),
        "current_stream": types.SimpleNamespace(
            cuda_stream=0, synchronize=lambda: None, wait_stream=lambda _: None
        ),
    }
    for name, answer in answers.items():
        setattr(torch.cuda, name, lambda *_, answer=answer, **__: answer)
    torch.Tensor.is_cuda = property(lambda _: True)
    torch.nn.Module.to = _moved(torch, torch.nn.Module.to)


def _moved(torch: "Any", function: "Callable[..., Any]") -> "Callable[..., Any]":
    """A function to which CUDA devices are the CPU."""

    def call(*args: "Any", **kwargs: "Any") -> "Any":
        args = tuple(_cpu(torch, each) for each in args)
        if "device" in kwargs:
            kwargs["device"] = _cpu(torch, kwargs["device"])
        return function(*args, **kwargs)

    return call


def _cpu(torch: "Any", value: "Any") -> "Any":
    is_device = isinstance(value, (str, torch.device)) and str(value).partition(":")[0] == "cuda"
    return "cpu" if is_device else value


def seeded(function: "Callable[..., Any]", init: "Any", seed: int) -> "Any":
    """A module, with weights that depend on nothing but the seed."""
    seed_all(seed)
    return function(*build(init, {}))


def seed_all(seed: int) -> None:
    """Seed all generators that a problem's code may draw from."""
    sys.modules["torch"].manual_seed(seed)
    for name, function in (("random", "seed"), ("numpy.random", "seed")):
        if name in sys.modules:
            getattr(sys.modules[name], function)(seed % (1 << 32))


# ----------------------------------------------------------------------------------- the oracle

_KEPT_MODELS = 16
_KEPT_SPACES = 32


class Reference:
    """The reference of a problem as a function of tensors, and what else its file offers.

    `module` is the problem's `Module` with the `seed` of all weights. The reference is built once
    for each list of arguments, and is computed in float64 unless `precision` is `native`.
    """

    def __init__(self, source: str, where: str, module: "dict[str, Any]") -> None:
        self._source, self._where, self._module = source, where, module
        self._models: dict[str, Callable[..., Any]] = {}
        self._spaces: dict[str, dict[str, Any]] = {}
        if not callable(self._space({}).get(module["reference"])):
            raise Mismatch(f"it defines no {module['reference']}")

    def outputs(self, case: "dict[str, Any]", tensors: "dict[str, Any]") -> "list[Any]":
        """The outputs of these inputs as float64 tensors, in the order of the signature.

        A case holds `init`, `call` and `returns` as nested structures, and for each array of
        `outputs` its name, type and shape.
        """
        torch = sys.modules["torch"]
        for name, dtype, shape in case["outputs"]:  # for those that the call names
            tensors[name] = torch.zeros(tuple(shape), dtype=getattr(torch, dtype))
        exact = self._module["precision"] == "float64"
        if exact:
            tensors = {
                name: value.double() if value.is_floating_point() else value
                for name, value in tensors.items()
            }
        with torch.no_grad():
            answer = self._function(case["init"], exact=exact)(*build(case["call"], tensors))
        if case["returns"]:
            tensors |= returned(case["returns"], answer)
        wanted = [tensors[name] for name, _, _ in case["outputs"]]
        for (name, _, _), value in zip(case["outputs"], wanted):  # noqa: B905
            if not isinstance(value, torch.Tensor):
                raise Mismatch(f"{name} is {_kind(value)}, not a tensor")
        return [value.detach().double().contiguous() for value in wanted]

    def drawn(
        self, dimensions: "dict[str, int]", seed: int, call: "Any", arrays: "Sequence[Any]"
    ) -> "list[Any]":
        """The inputs that the file draws, of the named types and shapes, in their order."""
        torch = sys.modules["torch"]
        seed_all(seed)
        space = {**self._space(dimensions), **dimensions, "seed": seed}
        drawn = list(eval(self._module["draw"], space))  # noqa: S307  (this process is for it)
        tensors = dict(flatten(call, drawn, "what is drawn"))
        for name, dtype, shape in arrays:
            require(name, tensors[name], getattr(torch, dtype), shape)
        return [tensors[name].detach().contiguous() for name, _, _ in arrays]

    def check(self, case: "dict[str, Any]", tensors: "dict[str, Any]") -> str:
        """What the file's own check says against outputs; nothing if they are right."""
        (data,) = build(case["call"], tensors)
        output = build(case["returns"], tensors)
        verdict = self._space({})[self._module["check"]](
            data, output[0] if len(output) == 1 else tuple(output)
        )
        is_right, words = verdict if isinstance(verdict, tuple) else (not verdict, verdict)
        return "" if is_right else str(words) or "the problem's own check refuses it"

    def _function(self, init: "Any", *, exact: bool) -> "Callable[..., Any]":
        key = repr(init)
        if key not in self._models:
            if len(self._models) >= _KEPT_MODELS:
                self._models.clear()
            function = self._space({})[self._module["reference"]]
            if init is not None:
                function = seeded(function, init, self._module["seed"])
                function = function.double() if exact else function
            self._models[key] = function
        return self._models[key]

    def _space(self, dimensions: "dict[str, int]") -> "dict[str, Any]":
        key = repr(dimensions)
        if key not in self._spaces:
            if len(self._spaces) >= _KEPT_SPACES:
                self._spaces.clear()
            self._spaces[key] = namespace_of(self._source, self._where, dimensions)
        return self._spaces[key]
