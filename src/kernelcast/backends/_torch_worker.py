"""The child that runs one PyTorch module: a script for a bare interpreter, like `_worker`.

`serve` puts the sandbox in force, imports PyTorch, and waits for a byte on its pipe. It then builds
the reference for its weights, seals the process against every system call that no module needs,
and only then imports the candidate and builds it for each list of arguments. `build` imports it
beforehand, in a process that may start compilers: what `load_inline` and `torch.compile` build
there is loaded later.

In a rehearsal (`rehearses`), CUDA means the CPU: a module for a GPU is built and called here, and
what it launched lies in the note after each request.

The process holds no clock, no expected output and no seed of inputs, and reports no times. A module
can change all that is in it, this service included: what counts are the bytes of its outputs, and
the parent's clock.

Request: phase, calls, case, base. Result: 0 for success, else text lies in the note at the end of
the shared memory. Before the note lie the addresses of outputs.
stage   make tensors of the slots; copy them to the device, and flush its cache
run     call once a slot, and wait for the device
idle    the same request without the calls
fetch   copy outputs to the slots
show    run, and note where the outputs lie, for the parent to read them there; copy those that lie
        apart to the slots
whole   run and fetch in one
note    in a rehearsal, call on a timed case, and only note what that launches
"""
# ruff: noqa: PTH109, PTH118, PTH120, PTH123, SIM105

import _thread
import importlib
import importlib.util
import json
import mmap
import os
import resource
import signal
import sys
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import Any

STAGE, RUN, IDLE, FETCH, SHOW, WHOLE, NOTE = range(7)
LOAD_FAILED, NO_DEVICE = 3, 4
RAISED, UNLIKE = 1, 2
NOTE_BYTES = 1 << 14
ADDRESSES_BYTES = 8 * 256  # of each output: one address for each call
OUTCOME = "outcome.json"
_TRIAL_CPU_S, _COMPILING_CPU_S = 5, 90  # in all first calls
_MOST_IDLE_S = 20


def _on_path(packages: "list[str]", folder: str) -> "Any":
    """Import PyTorch from these folders of packages; return `_module`."""
    module = importlib.import_module("_module")
    importlib.import_module("_extensions")
    importlib.import_module("_cuda_text")
    # This folder comes off the path: its `torch` is not PyTorch.
    here = os.path.dirname(__file__)
    sys.path[:] = [*(path for path in sys.path if path != here), *packages]
    sys.dont_write_bytecode = True
    module.import_torch()
    # A search for a folder in which it may write would find none.
    vars(importlib.import_module("tempfile"))["tempdir"] = folder
    return module


# -------------------------------------------------------------------------------------- to serve


def serve(arguments: "list[str]") -> None:
    """Serve under the policy in the first argument until the pipe is closed.

    A module that compiles as it runs, by `torch.compile` or Triton, is loaded and called while the
    parent lets pass what the seal refuses. The parent then looks for what it left behind.
    """
    import _confine  # type: ignore[import-not-found]  # `_sandbox` puts this folder on the path
    import _worker  # type: ignore[import-not-found]

    policy = _confine.decode(arguments[0])
    packages, folder, *numbers = _confine.confined(arguments)
    listener = _confine.listen(policy, int(numbers[-1]))
    service = _worker.Service(numbers, mmap.MAP_POPULATE)
    if listener is not None:
        service.wait()
        os.close(listener)  # the parent has it
    module = _on_path(json.loads(packages), folder)
    if listener is None:
        service.wait()
    with open(os.path.join(folder, "job.json")) as file:
        job = json.load(file)
    memory = memoryview(service.memory)
    note = memory[-NOTE_BYTES:]
    addresses = memory[-NOTE_BYTES - job["addresses_bytes"] : -NOTE_BYTES].cast("q")
    try:
        cases = [_Case(case) for case in job["cases"]]
        if job["rehearses"]:
            module.on_cpu()
            module.pretend_cuda()
        if job["device"] != "cpu" and not sys.modules["torch"].cuda.is_available():
            os._exit(NO_DEVICE)
        weights = _weights(module, job)
        extensions = sys.modules["_extensions"]
        extensions.use(job["extensions"], folder)
        runner = _Runner(module, job, cases, service.memory, note, addresses)
        # A device's driver needs calls that the seal refuses.
        if job["device"] == "cpu" and not policy["asks"]:
            _confine.seal(policy, service.reply_fd)
        runner.load(folder, weights)
    except BaseException as error:
        write_note(note, module.text_of(error, job["source"]))
        os._exit(LOAD_FAILED)
    service.serve(runner.answer)
    os._exit(0)  # a sealed interpreter cannot end in its own way


def write_note(note: memoryview, text: str) -> None:
    """Leave text for the parent."""
    words = text.encode(errors="replace")[: len(note) - 1]
    note[: len(words) + 1] = words + b"\0"


def _weights(module: "Any", job: "dict[str, Any]") -> "dict[str, dict[str, Any]]":
    """The weights of the reference for each list of arguments."""
    space = module.namespace_of(job["reference_source"], "reference.py", {})
    inits = {repr(case["init"]): case["init"] for case in job["cases"]}
    return {
        key: dict(module.seeded(space[job["reference"]], init, job["seed"]).state_dict())
        for key, init in inits.items()
        if init is not None
    }


class _Case:
    """The calls of one case: structures, and where its arrays lie in a slot."""

    def __init__(self, case: "dict[str, Any]") -> None:
        torch = sys.modules["torch"]
        self.init, self.call, self.returns = case["init"], case["call"], case["returns"]
        self.stride, self.is_stated = case["stride"], case["is_stated"]
        self.arrays = case["arrays"]  # name, type, shape, offset
        self.outputs = [
            (name, getattr(torch, dtype), shape)
            for name, dtype, shape, _ in self.arrays
            if name in case["outputs"]
        ]


class _Runner:
    """The candidate, and the tensors of the last request."""

    def __init__(
        self,
        module: "Any",
        job: "dict[str, Any]",
        cases: "list[_Case]",
        memory: mmap.mmap,
        note: memoryview,
        addresses: memoryview,
    ) -> None:
        self._module, self._job, self._cases = module, job, cases
        self._folder = ""
        self._memory, self._note, self._addresses = memory, note, addresses
        self._torch = torch = sys.modules["torch"]
        self._device = torch.device(job["device"])
        self._on_device = self._device.type != "cpu"
        self._flush: Any = None
        if self._on_device:
            self._flush = torch.empty(job["flush_bytes"], dtype=torch.uint8, device=self._device)
        self._entries: dict[str, Callable[..., Any]] = {}
        self._slots: list[dict[str, Any]] = []
        self._placed: list[dict[str, Any]] = []
        self._calls: list[Any] = []
        self._answers: list[Any] = []
        torch.set_grad_enabled(mode=False)

    def load(self, folder: str, weights: "dict[str, dict[str, Any]]") -> None:
        """Import the candidate, and build it for each list of arguments."""
        self._folder = folder
        entry = entry_of(folder, self._job["source"], self._job["entry"], self._module)
        for case in self._cases:
            key = repr(case.init)
            if key not in self._entries:
                self._entries[key] = built(self._module, self._job, entry, case.init)
                if case.init is not None:
                    self._entries[key] = moved(self._entries[key], self._device, weights[key])
        for case in self._cases:
            if (case.is_stated or self._job["compiles"]) and not self._job["rehearses"]:
                call_once(self._module, self._entries[repr(case.init)], case, self._device)
        self._wait()

    def answer(self, phase: int, calls: int, index: int, base: int) -> int:
        """Answer one request."""
        case = self._cases[index]
        try:
            if phase == STAGE:
                self._stage(case, calls, base)
            if phase in (RUN, SHOW, WHOLE):
                entry = self._entries[repr(case.init)]
                self._answers = [entry(*call) for call in self._calls]
                self._wait()
            if phase == SHOW:
                self._show(case)
            if phase in (FETCH, WHOLE):
                self._fetch(case)
            if phase == IDLE:
                self._wait()
            if phase in (SHOW, WHOLE) and self._job["rehearses"]:
                extensions = sys.modules["_extensions"]
                write_note(self._note, extensions.launched(self._job["extensions"], self._folder))
            if phase == NOTE:
                self._note_launches(_Case(self._job["timed"]))
        except self._module.Mismatch as error:
            write_note(self._note, str(error))
            return UNLIKE
        except BaseException as error:
            write_note(self._note, self._module.text_of(error, self._job["source"]))
            return RAISED
        return 0

    def _note_launches(self, case: _Case) -> None:
        """Note what a call on a case launches, without its content."""
        extensions, made = sys.modules["_extensions"], self._job["extensions"]
        key = repr(case.init)
        if key not in self._entries:
            entry = vars(sys.modules["kernel"])[self._job["entry"]]
            self._entries[key] = built(self._module, self._job, entry, case.init)
        tensors = ones(case, self._device)
        extensions.set_dry(made, self._folder, is_dry=True)
        extensions.launched(made, self._folder)
        self._entries[key](*self._module.build(case.call, tensors))
        extensions.set_dry(made, self._folder, is_dry=False)
        write_note(self._note, extensions.launched(made, self._folder))

    def _wait(self) -> None:
        if self._on_device:
            self._torch.cuda.synchronize()

    def _stage(self, case: _Case, calls: int, base: int) -> None:
        self._answers, self._calls = [], []
        tensor = self._module.tensor
        self._slots = [
            {
                name: tensor(self._memory, dtype, shape, base + call * case.stride + offset)
                for name, dtype, shape, offset in case.arrays
            }
            for call in range(calls)
        ]
        self._placed = self._slots
        if self._on_device:
            self._placed = [
                {name: value.to(self._device) for name, value in slot.items()}
                for slot in self._slots
            ]
            self._flush.zero_()
        self._calls = [self._module.build(case.call, slot) for slot in self._placed]
        self._wait()

    def _made(
        self, case: _Case, placed: "dict[str, Any]", answer: "Any"
    ) -> "Iterator[tuple[str, Any]]":
        """The outputs of one call by name, if they are of the right types and shapes."""
        made = self._module.returned(case.returns, answer) if case.returns else {}
        for name, dtype, shape in case.outputs:
            value = made.get(name, placed[name])
            self._module.require(name, value, dtype, shape)
            yield name, value

    def _show(self, case: _Case) -> None:
        """Note the address of each output; 0 for those that lie in the slot or are copied there.

        The tensors are kept until the parent has read them.
        """
        place = 0
        for slot, answer in zip(self._slots, self._answers):  # noqa: B905
            for name, value in self._made(case, slot, answer):
                lies_plain = value.is_contiguous() and not value.is_neg()
                self._addresses[place] = value.data_ptr() if lies_plain else 0
                if value is slot[name]:
                    self._addresses[place] = 0
                elif not lies_plain:
                    slot[name].copy_(value)
                place += 1

    def _fetch(self, case: _Case) -> None:
        """Copy outputs, and from a device also inputs, which must not have changed."""
        for slot, placed, answer in zip(self._slots, self._placed, self._answers):  # noqa: B905
            for name, value in self._made(case, placed, answer):
                if value is not slot[name]:
                    slot[name].copy_(value)
            if self._on_device:
                for name in slot.keys() - {name for name, _, _ in case.outputs}:
                    slot[name].copy_(placed[name])
        self._answers = []
        self._wait()


def entry_of(folder: str, source: str, name: str, module: "Any") -> "Any":
    """Import the candidate, and return its class or function."""
    module.install_shims(source)
    path = os.path.join(folder, "kernel.py")
    spec = importlib.util.spec_from_file_location("kernel", path)
    assert spec is not None
    assert spec.loader is not None
    kernel = importlib.util.module_from_spec(spec)
    sys.modules["kernel"] = kernel
    spec.loader.exec_module(kernel)
    entry = getattr(kernel, name, None)
    if not callable(entry):
        raise module.Mismatch(f"it defines no {name}")
    return entry


def built(module: "Any", job: "dict[str, Any]", entry: "Any", init: "Any") -> "Any":
    """The function to call: of a class an object, with the weights that the seed gives."""
    return entry if init is None else module.seeded(entry, init, job["seed"])


def moved(candidate: "Any", device: "Any", weights: "dict[str, Any]") -> "Any":
    """The candidate on a device, with the reference's weights where name and shape are the same."""
    if not isinstance(candidate, sys.modules["torch"].nn.Module):
        return candidate
    candidate = candidate.to(device)
    for name, value in candidate.state_dict().items():
        given = weights.get(name)
        if given is not None and given.shape == value.shape:
            value.copy_(given)
    return candidate


def ones(case: _Case, device: "Any") -> "dict[str, Any]":
    """Tensors of a case that hold nothing but ones."""
    torch = sys.modules["torch"]
    return {
        name: torch.ones(shape).to(device=device, dtype=getattr(torch, dtype))
        for name, dtype, shape, _ in case.arrays
    }


def call_once(module: "Any", entry: "Any", case: _Case, device: "Any") -> None:
    """Call the candidate before it counts: what it makes at its first call is made now.

    Any fault is found again, and judged, when it counts.
    """
    tensors = ones(case, device)
    try:
        entry(*module.build(case.call, tensors))
    except BaseException:  # noqa: S110
        pass


# -------------------------------------------------------------------------------------- to build


def build(arguments: "list[str]") -> None:
    """Import the candidate, build it for the stated cases, and call it; write outcome.json."""
    import _confine

    (packages,) = _confine.confined(arguments)
    folder = os.getcwd()
    with open("job.json") as file:
        job = json.load(file)
    module = _on_path(json.loads(packages), folder)
    torch = sys.modules["torch"]
    extensions = sys.modules["_extensions"]
    log: list[str] = []
    if job["rehearses"]:
        module.on_cpu()
        module.pretend_cuda()
        made = extensions.record_for_cpu(folder, job["headers"], job["source"], log)
    else:
        made = extensions.record(folder, job["headers"], job["source"])
    outcome: dict[str, Any] = {"failure": "", "extensions": made, "log": log}
    cases = [_Case(case) for case in job["cases"]]
    candidates: dict[str, Any] = {}
    try:
        torch.set_grad_enabled(mode=False)
        entry = entry_of(folder, job["source"], job["entry"], module)
        for case in cases:
            if repr(case.init) not in candidates:
                candidates[repr(case.init)] = built(module, job, entry, case.init)
    except BaseException as error:
        outcome["failure"] = extensions.plain(module.text_of(error, job["source"]), folder)
    _write(outcome)
    if not outcome["failure"] and not (job["rehearses"] and made):
        compiles = "compile" in job["source"]
        signal.setitimer(signal.ITIMER_PROF, _COMPILING_CPU_S if compiles else _TRIAL_CPU_S)
        _thread.start_new_thread(_end_if_asleep, ())
        for case in cases:
            call_once(module, candidates[repr(case.init)], case, torch.device("cpu"))
            _write(outcome)
    os._exit(0)


def _end_if_asleep() -> None:
    """End this process if its main thread sleeps for long and no compiler runs.

    A starved thread does not sleep. A module can prevent it, which costs it nothing but time.
    """
    asleep_s = 0
    task = f"/proc/self/task/{os.getpid()}"
    while asleep_s < _MOST_IDLE_S:
        time.sleep(1)
        with open(f"{task}/stat") as stat, open(f"{task}/children") as children:
            is_asleep = stat.read().rpartition(")")[2].split()[0] == "S"
            asleep_s = asleep_s + 1 if is_asleep and not children.read().strip() else 0
    os._exit(0)


def _write(outcome: "dict[str, Any]") -> None:
    used = [resource.getrusage(kind) for kind in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    outcome["cpu_s"] = sum(each.ru_utime + each.ru_stime for each in used)
    with open(f"{OUTCOME}.new", "w") as file:
        json.dump(outcome, file)
    os.replace(f"{OUTCOME}.new", OUTCOME)  # noqa: PTH105
