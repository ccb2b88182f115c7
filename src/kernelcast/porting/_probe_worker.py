"""The child that runs a file of another benchmark and says what it does: a script, like `_worker`.

It puts the sandbox in force, loads PyTorch and reads lines of JSON: first the source, then one
request a line. Each reply is one line of JSON. Nested structures are those of
`kernelcast.structure`; tensors of the arguments are called t0, t1, ..., those of the result r0, ...
"""
# pathlib takes 10 ms to import.
# ruff: noqa: PTH123

import importlib
import json
import math
import os
import sys
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager
    from typing import Any

CONFINED, READY = b"C", b"R"
SEED = 20_260_101
_MOST_WORDS = 300
_MOST_CALLS = 2000  # of operations whose work is counted
_MOST_COMPARED = 1 << 22  # elements of an input that is compared with how it was made
_LONGEST_TIMING_S = 1.0
_ROUNDING = 1e-5  # relative and absolute
_NOTICED = 1e-4
_LEAST_ELEMENTS = 16
_DTYPES = {
    *("float16", "bfloat16", "float32", "float64", "float8_e4m3fn", "float8_e5m2"),
    *("bool", "int8", "uint8", "int16", "int32", "int64"),
}

torch: "Any" = None
_module: "Any" = None


class Refused(Exception):
    """The file is none that can become a problem; the message says why, and what to change."""


def main(arguments: "list[str]") -> None:
    """Serve under the policy in the first argument."""
    global torch, _module
    import _confine  # type: ignore[import-not-found]  # `_sandbox` puts these folders on the path
    import _module as shared  # type: ignore[import-not-found]
    import _oracle_worker  # type: ignore[import-not-found]

    packages, _, *numbers = _confine.confined(arguments)
    request_fd, reply_fd = map(int, numbers)
    os.write(reply_fd, CONFINED)
    folders = json.loads(packages)
    sys.path[-2:] = folders["installed"]
    sys.meta_path.append(_oracle_worker._Edited(folders["edited"]))
    torch, _module = shared.import_torch(), shared
    _module.on_cpu()
    os.write(reply_fd, READY)
    with open(request_fd, "rb") as requests, open(reply_fd, "wb") as replies:
        file = _File(**json.loads(requests.readline()))
        for request in map(json.loads, requests):
            reply = _answer(file, request)
            replies.write(json.dumps(reply).encode() + b"\n")
            replies.flush()


def _answer(file: "_File", request: "dict[str, Any]") -> "dict[str, Any]":
    try:
        return {"numbers": file.numbers()} if request.get("load") else file.report(**request)
    except Refused as error:
        return {"refused": str(error)[:_MOST_WORDS]}
    except BaseException as error:
        return {"error": _module.text_of(error)[:_MOST_WORDS]}


class _File:
    """A file of a benchmark: what it defines, for given values of its own numbers.

    `inputs` is an expression of the list of arguments, `init` one of those of the class; no init,
    and the entry is a function. `submission` is a source whose `entry` may be right, too.
    """

    def __init__(
        self, source: str, where: str, reference: str, inputs: str, init: "str | None"
    ) -> None:
        self._source, self._where = source, where
        self._reference, self._inputs, self._init = reference, inputs, init

    def numbers(self) -> "dict[str, int]":
        """The file's own integers by name."""
        space = _module.namespace_of(self._source, self._where, {})
        return {name: value for name, value in space.items() if type(value) is int}

    def report(
        self,
        values: "dict[str, int]",
        spec: "dict[str, Any]",
        *,
        deep: bool = False,
        timed: bool = False,
        inputs: str = "",
        check: str = "",
        submission: str = "",
    ) -> "dict[str, Any]":
        """What one call is about, and what comes of it.

        `deep` tells more of the result: whether it is random, agrees with float64, and is written
        to an argument. `inputs` stands for the file's. `check` names a function whose tolerances
        are asked for.
        """
        space = _module.namespace_of(self._source, self._where, values)
        made = _Made()
        with made:
            arguments = self._evaluated(space, inputs or self._inputs, spec)
        names = _Names("t")
        call = [
            names.nested(each, f"argument {number}") for number, each in enumerate(arguments, 1)
        ]
        tensors = {name: tensor.detach() for name, tensor in names.tensors.items()}
        report: dict[str, Any] = {
            "call": call,
            "inputs": [
                {**_facts(name, tensor), "fill": made.fill(tensor)}
                for name, tensor in names.tensors.items()
            ],
            "init": None,
        }
        function = space.get(self._reference)
        if not callable(function):
            raise Refused(f"it defines no {self._reference}: add it")
        init = None
        if self._init is not None:
            init = report["init"] = _Names("").all(self._evaluated(space, self._init, spec))
        with torch.no_grad():
            entry, outputs = self._follow(
                report, function, init, call, tensors, deep=deep, timed=timed
            )
            if deep:
                others = self._evaluated(space, inputs or self._inputs, spec, SEED + 1)
                report |= _moved(entry, call, others, tensors, outputs)
            if check:
                report["tolerances"] = self._tolerances(space, check, function, call, tensors)
            if submission:
                report["submission_error"] = self._submission(submission, function, call, tensors)
        return report

    def _evaluated(
        self, space: "dict[str, Any]", text: str, spec: "dict[str, Any]", seed: int = SEED
    ) -> "list[Any]":
        _module.seed_all(seed)
        try:
            # This process is for it.
            values = eval(text, {**space, **spec, "seed": seed})  # noqa: S307
        except NameError as error:
            raise Refused(f"{error}: add it") from error
        if not isinstance(values, (list, tuple)):
            raise Refused(f"{text} returns no list: return one of all arguments")
        return list(values)

    def _follow(
        self,
        report: "dict[str, Any]",
        function: "Callable[..., Any]",
        init: "Any",
        call: "Any",
        tensors: "dict[str, Any]",
        *,
        deep: bool,
        timed: bool,
    ) -> "tuple[Callable[..., Any], dict[str, Any]]":
        """Call the function, and say what comes of it; what was called, and what it returned."""
        entry = function
        report["weights_bytes"] = 0
        if init is not None:
            entry = _module.seeded(function, init, SEED)
            if isinstance(entry, torch.nn.Module):
                state = entry.state_dict().values()
                report["weights_bytes"] = sum(_bytes(each) for each in state)
        passed = _clones(tensors)
        _module.seed_all(SEED)
        with _Counted() as counted:
            result = entry(*_module.build(call, passed))
        report["work"] = counted.calls
        names = _Names("r")
        report["returns"] = names.nested(result, "the result")
        if not names.tensors:
            raise Refused("it returns no tensor: return its result")
        report["outputs"] = [_facts(name, tensor) for name, tensor in names.tensors.items()]
        outputs = _clones(names.tensors)
        report["finite"] = all(bool(_wide(each).isfinite().all()) for each in outputs.values())
        changed = [name for name in tensors if not _same(tensors[name], passed[name])]
        report["changed"] = changed
        report["shared"] = {
            output: name
            for output, tensor in names.tensors.items()
            for name, array in passed.items()
            if array.data_ptr() == tensor.data_ptr() and array.shape == tensor.shape
        }
        if deep:
            report |= self._look_closer(function, entry, init, call, tensors, changed, outputs)
        if timed:
            report["seconds"] = _seconds(lambda: entry(*_module.build(call, passed)))
        return entry, outputs

    def _look_closer(
        self,
        function: "Callable[..., Any]",
        entry: "Callable[..., Any]",
        init: "Any",
        call: "Any",
        tensors: "dict[str, Any]",
        changed: "list[str]",
        outputs: "dict[str, Any]",
    ) -> "dict[str, Any]":
        def again(arrays: "dict[str, Any]", seed: int) -> "dict[str, Any]":
            _module.seed_all(seed)
            names = _Names("r")
            names.nested(entry(*_module.build(call, arrays)), "the result")
            return names.tensors

        facts: dict[str, Any] = {"random": not _all_same(outputs, again(_clones(tensors), 1))}
        if changed:
            other = _clones(tensors)
            for name in changed:
                other[name].fill_(1)
            facts["reads_changed"] = not _all_same(outputs, again(other, SEED))
        try:
            exact = function
            if init is not None:
                exact = _module.seeded(function, init, SEED).double()
            wide = {name: _widened(each) for name, each in tensors.items()}
            _module.seed_all(SEED)
            names = _Names("r")
            names.nested(exact(*_module.build(call, wide)), "the result")
            facts["error"] = max(_needed(outputs[name], names.tensors[name]) for name in outputs)
        except Exception as error:
            facts["no_float64"] = _module.text_of(error)[:_MOST_WORDS]
        return facts

    def _tolerances(
        self,
        space: "dict[str, Any]",
        check: str,
        function: "Callable[..., Any]",
        call: "Any",
        tensors: "dict[str, Any]",
    ) -> "list[list[float]]":
        """rtol and atol of each comparison that a check of the file makes."""
        output = function(*_module.build(call, _clones(tensors)))
        _module.recorded_tolerances.clear()
        space[check](*_module.build(call, _clones(tensors)), output)
        return [[float(part) for part in each] for each in _module.recorded_tolerances]

    def _submission(
        self, source: str, function: "Callable[..., Any]", call: "Any", tensors: "dict[str, Any]"
    ) -> "float | None":
        """How far a submission is from the reference; nothing if it does not work."""
        right, mine = _Names("r"), _Names("r")
        right.nested(function(*_module.build(call, _clones(tensors))), "the result")
        try:
            entry = _module.namespace_of(source, "submission.py", {})["custom_kernel"]
            mine.nested(entry(*_module.build(call, _clones(tensors))), "the result")
            return max(_needed(mine.tensors[name], each) for name, each in right.tensors.items())
        except Exception:
            return None


def _moved(
    entry: "Callable[..., Any]",
    call: "Any",
    others: "list[Any]",
    tensors: "dict[str, Any]",
    outputs: "dict[str, Any]",
) -> "dict[str, Any]":
    """The share of each output that other inputs change, the least; and whether there are any."""
    names = _Names("t")
    if [names.nested(each, "an argument") for each in others] != call:
        return {}
    arrays = _clones(names.tensors)
    if all(_same(tensors[name], array) for name, array in arrays.items()):
        return {"same_inputs": True}
    results = _Names("r")
    results.nested(entry(*_module.build(call, arrays)), "the result")
    return {"moved": min(_share(outputs[name], each) for name, each in results.tensors.items())}


def _share(one: "Any", other: "Any") -> float:
    """The share of elements that differ by more than a usual tolerance; all of a small tensor."""
    if one.shape != other.shape or one.numel() < _LEAST_ELEMENTS:
        return 1.0
    one, other = _wide(one), _wide(other)
    same = (one - other).abs() <= _NOTICED * (1.0 + one.abs())
    return 1.0 - float((same | (one == other)).double().mean())


class _Names:
    """Tensors of a value by names that are made up, and the value's nested structure."""

    def __init__(self, letter: str) -> None:
        self._letter = letter
        self.tensors: dict[str, Any] = {}

    def all(self, values: "list[Any]") -> "list[Any]":
        """Structures of values without tensors."""
        found = [self.nested(each, f"init argument {n}") for n, each in enumerate(values, 1)]
        if self.tensors:
            raise Refused("an argument of the class is a tensor: make it inside of the class")
        return found

    def nested(self, value: "Any", where: str) -> "Any":
        if isinstance(value, torch.Tensor):
            return {"array": self._name(value, where)}
        if value is None or isinstance(value, (bool, int, float, str)):
            return value
        if isinstance(value, torch.dtype):
            return {"torch": str(value).removeprefix("torch.")}
        if type(value) in (tuple, torch.Size):
            return {"tuple": [self.nested(each, where) for each in value]}
        if type(value) is list:
            return [self.nested(each, where) for each in value]
        if type(value) is dict:
            pairs = value.items()
            return {
                "dict": [[self.nested(key, where), self.nested(each, where)] for key, each in pairs]
            }
        if hasattr(value, "item") and getattr(value, "shape", None) == ():
            return self.nested(value.item(), where)
        raise Refused(
            f"{where} is a {type(value).__name__}: only tensors, numbers, words and lists, tuples "
            "and dictionaries of them can be imported"
        )

    def _name(self, tensor: "Any", where: str) -> str:
        dtype = str(tensor.dtype).removeprefix("torch.")
        if tensor.layout is not torch.strided or dtype not in _DTYPES:
            raise Refused(
                f"{where} is a tensor of {dtype} ({tensor.layout}): only dense tensors of "
                f"{', '.join(sorted(_DTYPES))} can be imported"
            )
        for name, other in self.tensors.items():
            if other is tensor:
                return name
        self.tensors[f"{self._letter}{len(self.tensors)}"] = tensor
        return f"{self._letter}{len(self.tensors) - 1}"


class _Made:
    """Watches the functions that make tensors, and says how a tensor was made.

    One that was changed after it was made, or derived from another, was not made by a function
    that kernelcast has, too.
    """

    _WATCHED = ("randn", "rand", "randint", "randn_like", "rand_like", "randint_like")

    def __init__(self) -> None:
        self._made: list[tuple[Any, int, Any, dict[str, Any]]] = []
        self._originals: dict[str, Any] = {}

    def __enter__(self) -> "_Made":
        for name in self._WATCHED:
            self._originals[name] = getattr(torch, name)
            setattr(torch, name, self._watched(name, self._originals[name]))
        return self

    def __exit__(self, *_: object) -> None:
        for name, original in self._originals.items():
            setattr(torch, name, original)

    def _watched(self, name: str, function: "Callable[..., Any]") -> "Callable[..., Any]":
        def call(*args: "Any", **kwargs: "Any") -> "Any":
            tensor = function(*args, **kwargs)
            content = tensor.clone() if tensor.numel() <= _MOST_COMPARED else None
            self._made.append((tensor, tensor._version, content, self._fill(name, args, kwargs)))
            return tensor

        return call

    @staticmethod
    def _fill(name: str, args: "tuple[Any, ...]", kwargs: "dict[str, Any]") -> "dict[str, Any]":
        if name.startswith("randn"):
            return {"kind": "normal"}
        if not name.startswith("randint"):
            return {"kind": "uniform"}
        bounds = [each for each in args if isinstance(each, int)]
        bounds += [kwargs[key] for key in ("low", "high") if key in kwargs]
        return (
            {"kind": "integers", "low": 0, "high": bounds[0]}
            if len(bounds) == 1
            else {"kind": "integers", "low": bounds[0], "high": bounds[1]}
        )

    def fill(self, tensor: "Any") -> "dict[str, Any]":
        """How a tensor is filled."""
        for made, version, content, fill in self._made:
            if made is tensor and tensor._version == version:
                changed = content is not None and not _same(content, tensor)
                return {"kind": "drawn"} if changed else fill
        return {"kind": "drawn"}


class _Counted:
    """Counts the work of matrix products and convolutions, call by call, with their extents."""

    def __init__(self) -> None:
        self.calls: list[dict[str, Any]] = []
        registry = importlib.import_module("torch.utils.flop_counter").flop_registry
        modes = importlib.import_module("torch.utils._python_dispatch")
        calls = self.calls

        class Mode(modes.TorchDispatchMode):  # type: ignore[misc, name-defined]
            @classmethod
            def _should_skip_dynamo(cls) -> bool:
                return False  # importing Dynamo takes seconds

            def __torch_dispatch__(
                self, func: "Any", _: "Any", args: "Any" = (), kwargs: "Any" = None
            ) -> "Any":
                kwargs = kwargs or {}
                out = func(*args, **kwargs)
                count = registry.get(getattr(func, "_overloadpacket", None))
                if count is not None and len(calls) < _MOST_CALLS:
                    results = out if isinstance(out, tuple) else (out,)
                    arrays = [x for x in (*args, *results) if isinstance(x, torch.Tensor)]
                    flops = int(count(*args, **kwargs, out_val=out))
                    calls.append({"flops": flops, "extents": [list(x.shape) for x in arrays]})
                return out

        self._mode: AbstractContextManager[Any] = Mode()

    def __enter__(self) -> "_Counted":
        self._mode.__enter__()
        return self

    def __exit__(self, *raised: "Any") -> None:
        self._mode.__exit__(*raised)


def _facts(name: str, tensor: "Any") -> "dict[str, Any]":
    dtype = str(tensor.dtype).removeprefix("torch.")
    return {"name": name, "dtype": dtype, "shape": list(tensor.shape)}


def _clones(tensors: "dict[str, Any]") -> "dict[str, Any]":
    return {
        name: tensor.detach().clone(memory_format=torch.contiguous_format)
        for name, tensor in tensors.items()
    }


def _bytes(tensor: "Any") -> int:
    return tensor.numel() * tensor.element_size() if isinstance(tensor, torch.Tensor) else 0


def _wide(tensor: "Any") -> "Any":
    return tensor.to(torch.float64, copy=True)


def _widened(tensor: "Any") -> "Any":
    """A copy for a computation in float64."""
    return _wide(tensor) if tensor.is_floating_point() else tensor.clone()


def _same(one: "Any", other: "Any") -> bool:
    """Whether two tensors hold the same, NaN included."""
    if one.shape != other.shape or one.dtype != other.dtype:
        return False
    return bool(torch.equal(torch.nan_to_num(_wide(one)), torch.nan_to_num(_wide(other))))


def _all_same(ones: "dict[str, Any]", others: "dict[str, Any]") -> bool:
    """Whether two results are the same but for rounding."""
    return ones.keys() == others.keys() and all(
        _needed(ones[name], others[name]) < _ROUNDING for name in ones
    )


def _needed(value: "Any", exact: "Any") -> float:
    """The rtol and atol, if they are the same, under which a tensor is right; infinite at worst."""
    value, exact = _wide(value), _wide(exact)
    if value.shape != exact.shape:
        return math.inf
    if not torch.equal(value.isnan(), exact.isnan()):
        return math.inf
    value, exact = (
        value.nan_to_num(0.0, math.inf, -math.inf),
        exact.nan_to_num(0.0, math.inf, -math.inf),
    )
    error = torch.where(value == exact, 0.0, (value - exact).abs() / (1.0 + exact.abs()))
    error = error.nan_to_num(math.inf)
    return float(error.max()) if error.numel() else 0.0


def _seconds(call: "Callable[[], Any]") -> float:
    """The shortest of a few calls, after one that is not timed."""
    call()
    best, until = math.inf, time.perf_counter() + _LONGEST_TIMING_S
    for _ in range(5):
        before = time.perf_counter()
        call()
        now = time.perf_counter()
        best = min(best, now - before)
        if now > until:
            break
    return best
