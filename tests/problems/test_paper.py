"""The paper's problems: their references, and modules that are right or subtly wrong.

The modules are the tests' own. They run in this process, which imports PyTorch once, under the real
verifier. They are also measured in the sandbox.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from kernelcast.backends import _module
from kernelcast.backends._arena import Arena
from kernelcast.backends._calls import case_calls, module_job
from kernelcast.backends._inputs import hidden_cases, make_inputs
from kernelcast.backends._sandbox import landlock_abi
from kernelcast.backends._verify import Image, KnownAnswer, lint
from kernelcast.backends.torch import TorchBackend
from kernelcast.canonical import as_kernel
from kernelcast.dtypes import dtype_of
from kernelcast.problems import bundled_problems, load_problem
from kernelcast.types import Case, Failure, FailureKind, Problem
from tests.hooks import gate_runs

torch: Any = pytest.importorskip(
    "torch", reason="PyTorch is not installed: pip install 'kernelcast[torch]'"
)

NAMES = bundled_problems("torch")
MODULES = Path(__file__).parents[1] / "modules" / "paper"
FILES = sorted(MODULES.glob("*/*.py"))
WEIGHTS_SEED = 7
HIDDEN = 6

Array = NDArray[Any]


class Solved:
    """A problem in this process: its reference, and what its cases make of a module."""

    def __init__(self, name: str) -> None:
        self.problem = load_problem(name)
        job = module_job(self.problem, WEIGHTS_SEED)
        assert job is not None
        self.module = job
        self.reference = _module.Reference(self.problem.oracle_source, name, job)

    def exact(self, inputs: Mapping[str, Array], case: Case) -> tuple[Array, ...]:
        image = Image.blank(self.problem, case, np.random.default_rng(0))
        for array, values in zip(
            image.arrays(image.content, "input"), inputs.values(), strict=True
        ):
            array[:] = values.reshape(-1)
        outputs = self.reference.outputs(
            case_calls(self.problem, case), self.tensors(image, image.content, "input")
        )
        return tuple(output.numpy() for output in outputs)

    def inputs(
        self, problem: Problem, case: Case, rng: np.random.Generator
    ) -> dict[str, NDArray[Any]]:
        if not self.module["draw"]:
            return make_inputs(problem, case, rng)
        calls = case_calls(problem, case)
        drawn = self.reference.drawn(
            dict(case.dimensions), int(rng.integers(1 << 62)), calls["call"], calls["drawn"]
        )
        return {
            name: value.numpy() for (name, _, _), value in zip(calls["drawn"], drawn, strict=True)
        }

    def tensors(self, image: Image, slot: NDArray[np.uint8], role: str) -> dict[str, Any]:
        memory: Any = slot.data
        return {
            argument.name: _module.tensor(
                memory, argument.dtype, argument.extent(image.case.dimensions), offset
            )
            for argument, offset in zip(self.problem.arguments, image.layout.offsets, strict=True)
            if argument.role == role
        }

    def call(self, source: str, image: Image) -> NDArray[np.uint8]:
        """The memory after a call of a module, which is built as in a worker."""
        slot = image.content.copy()
        calls = case_calls(self.problem, image.case)
        entry = _module.namespace_of(source, "kernel.py", {})[self.problem.entry]
        if calls["init"] is not None:
            reference: Any = self.reference._function(calls["init"], exact=False)
            entry = _module.seeded(entry, calls["init"], WEIGHTS_SEED)
            entry.load_state_dict({key: x.float() for key, x in reference.state_dict().items()})
        with torch.no_grad():
            answer = entry(*_module.build(calls["call"], self.tensors(image, slot, "input")))
        returned = _module.returned(calls["returns"], answer)
        for name, tensor in self.tensors(image, slot, "output").items():
            assert returned[name].dtype == tensor.dtype
            tensor.copy_(returned[name])
        return slot

    def failure(self, source: str) -> Failure | None:
        """What the verifier finds in stated and in hidden cases, with the seed's budget."""
        rng = np.random.default_rng(5)
        hidden = hidden_cases(self.problem, HIDDEN, Arena.of(self.problem).size, rng)
        for case in (*self.problem.cases, *hidden):
            answer = KnownAnswer.draw(self.problem, case, self.exact, rng, self.inputs)
            honest = answer.errors(self.call(self.problem.seed_source, answer.image))
            if failure := answer.check(self.call(source, answer.image), honest):
                return failure
        return None


@pytest.fixture(scope="module", params=NAMES)
def solved(request: pytest.FixtureRequest) -> Solved:
    return Solved(request.param)


def test_a_reference_tells_right_from_wrong(solved: Solved) -> None:
    """Every input matters, the seed is right, and eager PyTorch is far within the tolerance."""
    lint(solved.problem, solved.exact, np.random.default_rng(0), solved.inputs)
    assert solved.failure(solved.problem.seed_source) is None
    (case,) = solved.problem.timed_cases
    answer = KnownAnswer.draw(
        solved.problem, case, solved.exact, np.random.default_rng(1), solved.inputs
    )
    errors = answer.errors(solved.call(solved.problem.seed_source, answer.image))
    for argument in solved.problem.arguments:
        if argument.name in errors and not dtype_of(argument.dtype).is_narrow:
            assert errors[argument.name].rms < 0.01


def test_cases_for_a_gpu_are_larger(solved: Solved) -> None:
    on_gpu = load_problem(solved.problem.name, device="gpu")
    (here,) = solved.problem.timed_cases
    assert len(on_gpu.timed_cases) == 3
    small = [case for case in solved.problem.cases if not case.timed]
    assert [case for case in on_gpu.cases if not case.timed] == small
    for case in on_gpu.timed_cases:
        assert Arena.of(on_gpu).size < 2 << 30
        assert np.prod(list(case.dimensions.values())) > np.prod(list(here.dimensions.values()))


@pytest.mark.parametrize(
    "path",
    [path for path in FILES if "load_inline" not in path.read_text()],
    ids=lambda path: f"{path.parent.name}-{path.stem[:2]}",
)
def test_verdicts_on_modules(path: Path) -> None:
    source = path.read_text()
    failure = Solved(path.parent.name).failure(source)
    assert f"# expect: {failure.kind if failure else 'ok'}\n" in source, failure


def test_every_problem_has_a_right_module_and_a_wrong_one() -> None:
    for name in NAMES:
        texts = [path.read_text() for path in FILES if path.parent.name == name]
        expected = [text.splitlines()[1] for text in texts]
        assert {"# expect: ok", "# expect: wrong_result"} == set(expected)


# ------------------------------------------------------------------- what the references mean


def test_the_gradient_of_cross_entropy_is_autograds() -> None:
    space = _module.namespace_of(load_problem("cross_entropy_bf16").oracle_source, "r.py", {})
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(5, 17, dtype=torch.float64, generator=generator, requires_grad=True)
    labels = torch.randint(17, (5,), generator=generator)
    weights = torch.randn(5, dtype=torch.float64, generator=generator)
    expected = torch.nn.functional.cross_entropy(logits, labels, reduction="none")
    expected.backward(weights)
    loss, gradient = space["cross_entropy"](logits.detach(), labels, weights)
    torch.testing.assert_close(loss, expected.detach())
    torch.testing.assert_close(gradient, logits.grad)


def test_triangles_are_sums_over_the_third_corner() -> None:
    """The product by loops, between the reference's own norms, projections and gates."""
    space = _module.namespace_of(load_problem("trimul").oracle_source, "r.py", {})
    model = _module.seeded(space["TriMul"], [6, 4], 3).double()
    x = torch.randn(1, 3, 3, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    mask = torch.tensor([[[1.0, 0, 1], [1, 1, 1], [0, 1, 1]]], dtype=torch.float64)
    with torch.no_grad():
        z = model.norm(x)[0]
        sums = torch.zeros(3, 3, 4, dtype=torch.float64)
        for i in range(3):
            for j in range(3):
                for k in range(3):
                    left = torch.sigmoid(model.left_gate(z[i, k])) * model.left(z[i, k])
                    right = torch.sigmoid(model.right_gate(z[j, k])) * model.right(z[j, k])
                    sums[i, j] += left * mask[0, i, k] * right * mask[0, j, k]
        expected = model.out(torch.sigmoid(model.out_gate(z)) * model.out_norm(sums))
        torch.testing.assert_close(model(x, mask)[0], expected)


def test_the_three_kernels_are_the_recurrence_token_by_token() -> None:
    """Gated DeltaNet: S = exp(decay) S; S += beta k (v - S^T k)^T; o = S^T q / sqrt(K)."""
    spaces = {
        name: _module.namespace_of(load_problem(name).oracle_source, f"{name}.py", {})
        for name in ("deltanet_wu", "deltanet_h", "deltanet_o")
    }
    b, n, h, k_size, v_size = 2, 3, 2, 8, 5
    drawn = spaces["deltanet_wu"]["inputs"](b, n, h, k_size, v_size, 11)
    k, v, beta, g = (each.double() for each in drawn)
    start = torch.randn(b, h, k_size, v_size, dtype=torch.float64)
    q = torch.randn_like(k)

    w, u = spaces["deltanet_wu"]["prepare"](k, v, beta, g)
    states, values = spaces["deltanet_h"]["states"](k, w, u, g, start)
    out = spaces["deltanet_o"]["output"](q, k, values, states, g)

    log_decay = g.unflatten(1, (n, 64)).diff(dim=2, prepend=torch.zeros(b, n, 1, h)).flatten(1, 2)
    state, expected = start, torch.empty_like(v)
    for t in range(n * 64):
        if t % 64 == 0:
            torch.testing.assert_close(states[:, t // 64], state)
        state = torch.exp(log_decay[:, t])[..., None, None] * state
        held = torch.einsum("bhk,bhkv->bhv", k[:, t], state)
        written = beta[:, t, :, None] * (v[:, t] - held)
        state = state + torch.einsum("bhk,bhv->bhkv", k[:, t], written)
        expected[:, t] = torch.einsum("bhk,bhkv->bhv", q[:, t], state) / k_size**0.5
    torch.testing.assert_close(out, expected)


# ------------------------------------------------------------------------------- in the sandbox


@pytest.fixture(scope="module")
def backend() -> Iterator[TorchBackend]:
    backend = TorchBackend(threads=1, device_cap_s=6.0)
    yield backend
    backend.close()


@pytest.mark.measures
@pytest.mark.skipif(
    shutil.which("bwrap") is None or landlock_abi() == 0,
    reason="needs bubblewrap (apt-get install bubblewrap) and a kernel with Landlock",
)
@pytest.mark.parametrize("name", gate_runs(1, sorted(NAMES, key=lambda name: name != "fp8_quant")))
def test_a_right_module_is_measured_against_the_seed(backend: TorchBackend, name: str) -> None:
    """The seed is measured first; one wrong module shows that the verdict is not `ok` for all."""
    problem = load_problem(name)
    right, wrong, *_ = (path for path in FILES if path.parent.name == name)
    measurement = backend.measure(problem, as_kernel(right.read_text(), "torch"), seed=1)
    assert measurement.failure is None
    assert measurement.timing is not None
    if name == "fp8_quant":
        refused = backend.measure(problem, as_kernel(wrong.read_text(), "torch"), seed=1).failure
        assert refused is not None
        assert refused.kind is FailureKind.WRONG_RESULT
