"""Hostile and honest references, asked from outside."""

from __future__ import annotations

import gc
import importlib.util
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from kernelcast.backends._confine import process_started
from kernelcast.backends._oracle import Oracle, Oracles
from kernelcast.backends._proof import detect_sandbox
from kernelcast.backends._sandbox import Sandbox
from kernelcast.backends._verify import KnownAnswer, lint
from kernelcast.errors import ProblemError, SetupError
from kernelcast.problems import bundled_problems, load_problem
from kernelcast.types import Case, Problem

from .test_verify import make_problem

N = 33
CASE = Case(name="main", dimensions={"N": N})
X = np.arange(N, dtype=np.float32)
UNCONFINED = Sandbox(frozenset())
HONEST = "def reference(x, *, N):\n    return 2 * x\n"


@pytest.fixture(scope="module")
def sandbox() -> Sandbox:
    return detect_sandbox()


def asked(
    problem: Problem | str, sandbox: Sandbox, inputs: NDArray[Any] = X, limit_s: float = 300.0
) -> list[NDArray[Any]]:
    """Two answers of a reference, so that what it does after the first has a chance."""
    problem = make_problem(problem) if isinstance(problem, str) else problem
    case = Case(name="main", dimensions={"N": inputs.size})
    with Oracle(problem, sandbox, limit_s) as oracle:
        oracle({"x": inputs}, case)
        return list(oracle({"x": inputs}, case))


def body(text: str, before: str = "") -> str:
    """A reference with this body."""
    indented = textwrap.indent(textwrap.dedent(text).strip(), "    ")
    return f"import os, struct, numpy as np\n{before}\ndef reference(x, *, N):\n{indented}\n"


def complaint(source: str, sandbox: Sandbox, **options: Any) -> str:
    with pytest.raises(ProblemError) as raised:
        asked(source, sandbox, **options)
    return str(raised.value)


def is_alive(pid: int, started: int) -> bool:
    """Whether the process of this id is still the same one."""
    try:
        return process_started(pid) == started
    except OSError:
        return False


def wait_until_gone(processes: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """Those that do not go away; the dead are gone at once if the machine is not busy."""
    deadline = time.monotonic() + 120.0
    while (left := [each for each in processes if is_alive(*each)]) and time.monotonic() < deadline:
        time.sleep(0.02)
    return left


def processes(oracle: Oracle) -> list[tuple[int, int]]:
    """The launcher and the worker of an oracle that was asked."""
    process = oracle._process
    assert process is not None
    pids = {process._process.pid, process._worker_pid}
    return [(pid, process_started(pid)) for pid in pids]


# ------------------------------------------------------------------------ honest references


def test_outputs_are_those_of_the_function_in_double_precision(sandbox: Sandbox) -> None:
    (doubled,) = asked(HONEST, sandbox)
    assert doubled.dtype == np.float64
    assert np.array_equal(doubled, 2.0 * X)
    assert doubled.flags.writeable


@pytest.mark.parametrize("dtype", ["float64", "int32"])
def test_inputs_arrive_in_their_own_type(sandbox: Sandbox, dtype: str) -> None:
    problem = make_problem(body(f"assert x.dtype == {dtype!r}\nreturn x"), dtype=dtype)
    (same,) = asked(problem, sandbox, X.astype(dtype))
    assert np.array_equal(same, X)


def test_anything_that_is_numbers_is_an_answer(sandbox: Sandbox) -> None:
    forms = [
        "x",
        "x.astype('float16')",
        "x.tolist()",
        "np.array(x, dtype=object)",
        "x[:, None].T[0]",
    ]
    source = body(f"return eval({forms}[int(x[0])])")
    with Oracle(make_problem(source), sandbox) as oracle:
        for index in range(len(forms)):
            assert np.array_equal(oracle({"x": X + index}, CASE)[0], X + index)


def test_several_outputs_and_special_values(sandbox: Sandbox) -> None:
    problem = make_problem(body("return x, np.full(N, np.nan), -np.inf * (1 + x)"))
    x, y = problem.arguments
    outputs = [y.model_copy(update={"name": name}) for name in "abc"]
    several = problem.model_copy(update={"arguments": (x, *outputs)})
    same, nan, infinite = asked(several, sandbox)
    assert np.array_equal(same, X)
    assert np.isnan(nan).all()
    assert np.isneginf(infinite).all()


def test_a_single_number_is_an_output(sandbox: Sandbox) -> None:
    problem = make_problem(body("return x.sum(dtype='float64').reshape(1)"))
    x, y = problem.arguments
    total = y.model_copy(update={"shape": ("1",)})
    (answer,) = asked(problem.model_copy(update={"arguments": (x, total)}), sandbox)
    assert answer.tolist() == [X.sum()]


def test_a_larger_question_than_any_case_is_answered(sandbox: Sandbox) -> None:
    large = np.ones(3_000_000, dtype=np.float32)
    with Oracle(make_problem(HONEST), sandbox) as oracle:
        oracle({"x": X}, CASE)
        case = Case(name="large", dimensions={"N": large.size})
        assert oracle({"x": large}, case)[0].sum() == 2.0 * large.size


def test_what_a_reference_prints_is_discarded(
    sandbox: Sandbox, capfd: pytest.CaptureFixture[str]
) -> None:
    loud = body("print('loud')\nos.write(1, b'loud')\nos.write(2, b'loud')\nreturn 2 * x")
    assert np.array_equal(asked(loud, sandbox)[0], 2 * X)
    assert capfd.readouterr() == ("", "")


def test_inputs_of_the_caller_are_left_alone(sandbox: Sandbox) -> None:
    inputs = X.copy()
    (answer,) = asked(body("x *= 3\nreturn x"), sandbox, inputs)
    assert np.array_equal(answer, 3 * X)
    assert np.array_equal(inputs, X)


def test_an_oracle_that_works_in_place_passes_the_lint(sandbox: Sandbox) -> None:
    """It is compared with what it was given, not with its own work."""
    problem = make_problem(body("x *= 2\nreturn x"), rtol=1e-3)
    with Oracle(problem, sandbox) as oracle:
        lint(problem, oracle, np.random.default_rng(0))
        answer = KnownAnswer.draw(problem, problem.cases[0], oracle, np.random.default_rng(0))
    (x,) = answer.image.arrays(answer.image.content, "input")
    assert np.array_equal(2.0 * x, answer.exact["y"])


@pytest.mark.parametrize("name", bundled_problems("cpp"))
def test_bundled_references_answer_on_their_correctness_cases(sandbox: Sandbox, name: str) -> None:
    problem = load_problem(name)
    with Oracle(problem, sandbox) as oracle:
        for case in problem.cases:
            if not case.timed:
                answer = KnownAnswer.draw(problem, case, oracle, np.random.default_rng(0))
                assert answer.check(answer.image.content) is not None


def test_installed_packages_can_be_imported(sandbox: Sandbox) -> None:
    answers = {
        "scipy.special": "scipy.special.expit(x.astype('float64'))",
        "torch": "torch.sigmoid(torch.from_numpy(x).double())",
        "jax": "1 / (1 + jax.numpy.exp(-jax.numpy.asarray(x)))",
    }
    for module, answer in answers.items():
        if module == "scipy.special" or importlib.util.find_spec(module):
            (answered,) = asked(body(f"return {answer}", f"import {module}"), sandbox)
            assert answered == pytest.approx(1 / (1 + np.exp(-X.astype(np.float64))))


def test_threads_take_turns(sandbox: Sandbox) -> None:
    with Oracle(make_problem(HONEST), sandbox) as oracle, ThreadPoolExecutor(4) as pool:
        inputs = [np.full(N, number, dtype=np.float32) for number in range(32)]
        answers = list(pool.map(lambda x: oracle({"x": x}, CASE)[0], inputs))
    for x, answer in zip(inputs, answers, strict=True):
        assert np.array_equal(answer, 2 * x)


# ------------------------------------------------------------------------- broken references


WRONG_ANSWERS = {
    "x[1:]": "case 'main': y has shape (32,), problem.toml says (33,)",
    "np.float64(1)": "case 'main': y has shape (), problem.toml says (33,)",
    "(x, x)": "tiny/reference.py: returned 2 arrays, not 1",
    "()": "tiny/reference.py: returned 0 arrays, not 1",
    "(x,) * 100_000": "returned 100000 arrays, not 1",
    "np.zeros((1,) * 64)": "y has shape (1, 1, 1, ",
    "np.broadcast_to(x, (2**40, N))": "y has shape (1099511627776, 33)",
    "1 / 0": "case 'main' raised ZeroDivisionError('division by zero')",
    "None": "y has shape ()",
    "'text'": "y has shape ()",
    "x + 1j": "raised TypeError('complex64 is no type of real numbers')",
    "x.astype(str)": "is no type of real numbers",
    "np.array([{}] * N)": "case 'main' raised TypeError",
    "[[1], [1, 2]]": "case 'main' raised ValueError",
    "fail(Shown('\\x1b[2J\\n' + 'long ' * 9999))": "case 'main' raised  [2J long long",
    "fail(Shy())": "case 'main' raised Shy",
    "np.ones(1 << 60)": "case 'main' raised ",
    "np.ones((1 << 30, N))": "MemoryError",
}


def test_a_wrong_answer_is_a_problem_error(sandbox: Sandbox) -> None:
    before = """
class Shy(Exception):
    def __repr__(self): raise self
class Shown(Exception):
    def __repr__(self): return str(self)
def fail(error): raise error
"""
    source = body(f"return eval({list(WRONG_ANSWERS)}[int(x[0])])", before)
    with Oracle(make_problem(source), sandbox) as oracle:
        for index, words in enumerate(WRONG_ANSWERS.values()):
            with pytest.raises(ProblemError) as raised:
                oracle({"x": X + index}, CASE)
            assert words in str(raised.value)
            assert str(raised.value).isprintable()
            assert len(str(raised.value)) < 1500


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ("x = 1\n", "tiny/reference.py: define a function reference"),
        (body("return x", "1 / 0"), "does not load: ZeroDivisionError"),
        (body("return x", "import not_there"), "No module named 'not_there'"),
        ("def reference(:\n", "does not load: SyntaxError"),
        ("(" * 100_000, "does not load: "),
        (body("return x", "raise SystemExit(7)"), "exited with status 7 and no answer"),
        (body("os._exit(0)"), "case 'main': exited with status 0 and no answer"),
        (body("import ctypes; ctypes.string_at(0)"), "case 'main': died of SIGSEGV"),
    ],
)
def test_a_reference_without_an_answer_is_a_problem_error(
    sandbox: Sandbox, source: str, words: str
) -> None:
    assert words in complaint(source, sandbox)


@pytest.mark.parametrize("pause", ["pass", "time.sleep(1)"], ids=["computes", "sleeps"])
def test_a_reference_that_hangs_is_ended(sandbox: Sandbox, pause: str) -> None:
    source = body(f"while True: {pause}", "import time")
    assert "case 'main': gave no answer within 0.5 s" in complaint(source, sandbox, limit_s=0.5)


def test_a_reference_that_reads_no_question_is_ended(sandbox: Sandbox) -> None:
    """A question of many dimensions is longer than what a pipe holds."""
    names = [f"dimension_{index}" for index in range(9000)]
    source = body("return x", "while True: pass")
    case = Case(name="main", dimensions={"N": N} | dict.fromkeys(names, 1))
    with (
        Oracle(make_problem(source), sandbox, 0.5) as oracle,
        pytest.raises(ProblemError, match=r"read no question within 0.5 s"),
    ):
        oracle({"x": X}, case)


def test_another_question_after_an_error_is_answered_by_a_new_process(sandbox: Sandbox) -> None:
    problem = make_problem(body("if x[0] == 1: os._exit(3)\nreturn x"))
    with Oracle(problem, sandbox) as oracle:
        oracle({"x": X}, CASE)
        first = processes(oracle)
        with pytest.raises(ProblemError, match="status 3"):
            oracle({"x": X + 1}, CASE)
        assert wait_until_gone(first) == []
        assert np.array_equal(oracle({"x": X}, CASE)[0], X)
        assert processes(oracle) != first


# ------------------------------------------------------------------------ hostile references


def attempts(secret: Path) -> dict[str, str]:
    """What a reference must not do, as statements that raise or are false where it is denied."""
    return {
        "reads a system file": "open('/etc/passwd').read()",
        "reads a secret": f"open({str(secret)!r}).read()",
        "reads the home": f"os.listdir({str(Path.home())!r})",
        "reads the repository": f"os.listdir({str(Path(__file__).parents[2])!r})",
        "reads the parent's environment": f"open('/proc/{os.getpid()}/environ').read()",
        "has the parent's environment": "os.environ['KERNELCAST_PLANTED']",
        "writes a file": f"open({str(secret.with_name('new'))!r}, 'w')",
        "writes to /tmp": f"open('/tmp/kernelcast-{os.getpid()}', 'w')",
        "changes a package": "os.utime(np.__file__)",
        "opens a socket": "socket.socket()",
        "makes a pair of sockets": "socket.socketpair()",
        "forks": "os.fork() or os._exit(0)",
        "starts a program": "os.posix_spawn('/bin/true', ['true'], {})",
        "signals the parent": f"os.kill({os.getpid()}, 0)",
        "finds its parent": f"os.getppid() == {os.getpid()} or 1 / 0",
        "shares memory by name": "shared_memory.SharedMemory('kernelcast', True, 64).unlink()",
        "takes all memory": "mmap.mmap(-1, 1 << 36, flags=0x4022)",
    }


def attacker(tries: Sequence[str]) -> str:
    """A reference whose first outputs say which of these it could do."""
    lines = ["y = np.zeros(N)"]
    for index, attempt in enumerate(tries):
        lines += ["try:", f"    {attempt}", f"    y[{index}] = 1", "except Exception: pass"]
    before = "import mmap, socket\nfrom multiprocessing import shared_memory\nos.environ"
    return body("\n".join([*lines, "return y"]), before)


def test_a_reference_can_do_nothing_but_compute(
    sandbox: Sandbox, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KERNELCAST_PLANTED", "secret")
    secret = tmp_path / "secret"
    secret.write_text("secret")
    tries = attempts(secret)
    case = Case(name="main", dimensions={"N": N})

    def succeed(sandbox: Sandbox) -> set[str]:
        with Oracle(make_problem(attacker(list(tries.values()))), sandbox) as oracle:
            answer = oracle({"x": X}, case)[0]
        return {name for name, done in zip(tries, answer, strict=False) if done}

    assert succeed(sandbox) == set()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["secret"]
    Path(f"/tmp/kernelcast-{os.getpid()}").unlink(missing_ok=True)
    # The same ones work where nothing confines them, so the attempts are real.
    assert succeed(UNCONFINED) == set(tries)
    Path(f"/tmp/kernelcast-{os.getpid()}").unlink()


FORGERIES = {
    "replies itself": "os.write(REPLY, struct.pack('<qqqqq', 1, 0, 1, 1, N))",
    "garbage everywhere": "for fd in range(256):\n    try: os.write(fd, b'garbage' * 2000)\n"
    "    except OSError: pass",
    "a flood": "os.set_blocking(REPLY, False)\nos.write(REPLY, bytes(1 << 16))",
    "a word": "os.write(REPLY, b'x')",
    "nothing more": "os.close(REPLY)",
    "closes everything": "os.closerange(0, 256)",
}


@pytest.mark.parametrize("forgery", FORGERIES)
def test_a_forged_reply_is_a_problem_error(sandbox: Sandbox, forgery: str) -> None:
    source = body(f"{FORGERIES[forgery]}\nreturn x", "import sys\nREPLY = int(sys.argv[-1])")
    message = complaint(source, sandbox)
    assert "forged a reply" in message or "died of SIGKILL" in message or "exited" in message


@pytest.mark.parametrize(
    ("words", "text"),
    [
        ("0, 1, 1, 34", "has shape (34,)"),
        ("0, 1, 1, -1", "has shape (-1,)"),
        ("0, 1, 2**62, 33", "forged a reply"),
        ("0, 1, -1", "forged a reply"),
        ("0, 1", "forged a reply"),
        ("0", "forged a reply"),
        ("99, 1, 1, 33", "forged a reply"),
        ("0, -5", "returned -5 arrays"),
        ("1, -1", "raised "),
    ],
)
def test_forged_shapes_are_data(sandbox: Sandbox, words: str, text: str) -> None:
    """The reference knows the nonce of its own request, and answers in place of the worker."""
    source = body(
        f"""
        nonce = sys._getframe(1).f_locals['request']['nonce']
        words = nonce, {words}
        os.write(int(sys.argv[-1]), struct.pack(f'<{{len(words)}}q', *words))
        os._exit(0)
        """,
        "import sys",
    )
    message = complaint(source, sandbox)
    assert text in message
    assert message.isprintable()


def test_the_memory_cannot_be_shrunk_and_is_not_read_twice(sandbox: Sandbox) -> None:
    """A thread writes to the outputs all the time, also after the reply."""
    source = body(
        """
        global memory
        if memory is None:
            memory = sys._getframe(1).f_locals['memory']
            threading.Thread(target=scribble, daemon=True).start()
            try: memory.resize(0)
            except Exception: pass
        return x
        """,
        textwrap.dedent("""
        import sys, threading
        memory = None
        def scribble():
            view = np.frombuffer(memory, dtype=np.uint8)
            while True:
                view[4096:] ^= 1
        """),
    )
    with Oracle(make_problem(source), sandbox) as oracle:
        answers = [oracle({"x": X}, CASE)[0] for _ in range(20)]
        kept = [answer.copy() for answer in answers]
        process = oracle._process
        assert process is not None
        process._line.memory[:] = 7
        assert all(map(np.array_equal, answers, kept))


def test_a_reference_that_is_not_asked_does_not_run(sandbox: Sandbox) -> None:
    """A thread that computes would disturb what is measured meanwhile."""
    before = "import threading\ndef spin():\n    while True: pass\n"
    source = body("threading.Thread(target=spin, daemon=True).start()\nreturn x", before)

    def cpu_ticks(pid: int) -> tuple[int, int]:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return int(fields[11]), int(fields[12])

    with Oracle(make_problem(source), sandbox) as oracle:
        oracle({"x": X}, CASE)
        assert oracle._process is not None
        pid = oracle._process._worker_pid
        deadline = time.monotonic() + 120.0
        states: set[str] = set()
        while states != {"T"} and time.monotonic() < deadline:
            stats = [path.read_text() for path in Path(f"/proc/{pid}/task").glob("*/stat")]
            states = {stat.rpartition(")")[2].split()[0] for stat in stats}
        assert len(stats) >= 2
        before_ticks = cpu_ticks(pid)
        time.sleep(0.2)
        assert cpu_ticks(pid) == before_ticks
        assert np.array_equal(oracle({"x": X}, CASE)[0], X)


# ------------------------------------------------------------------------------- its process


@pytest.fixture
def asked_oracle(sandbox: Sandbox) -> Iterator[Oracle]:
    with Oracle(make_problem(HONEST), sandbox) as oracle:
        oracle({"x": X}, CASE)
        yield oracle


def test_one_process_answers_all_questions(asked_oracle: Oracle) -> None:
    first = processes(asked_oracle)
    asked_oracle({"x": X}, CASE)
    assert processes(asked_oracle) == first


def test_closing_ends_it_and_a_question_starts_it_again(asked_oracle: Oracle) -> None:
    first, fds = processes(asked_oracle), len(list(Path("/proc/self/fd").iterdir()))
    asked_oracle.close()
    assert wait_until_gone(first) == []
    assert len(list(Path("/proc/self/fd").iterdir())) < fds
    asked_oracle({"x": X}, CASE)
    assert len(list(Path("/proc/self/fd").iterdir())) == fds


def test_it_ends_with_its_last_user(sandbox: Sandbox) -> None:
    oracles = Oracles(sandbox)
    problem = make_problem(HONEST)
    oracle = oracles.of(problem)
    assert oracles.of(problem) is oracle
    oracle({"x": X}, CASE)
    kept = processes(oracle)
    for index in range(4):
        oracles.of(make_problem(HONEST + f"# {index}\n"))
    assert oracles.of(problem) is not oracle
    assert all(is_alive(*each) for each in kept)
    del oracle
    gc.collect()
    assert wait_until_gone(kept) == []


def test_it_ends_with_the_backend(sandbox: Sandbox) -> None:
    oracles = Oracles(sandbox)
    oracle = oracles.of(make_problem(HONEST))
    oracle({"x": X}, CASE)
    kept = processes(oracle)
    oracles.close()
    assert wait_until_gone(kept) == []


def test_a_fork_asks_a_process_of_its_own_and_leaves_the_others_alone(
    asked_oracle: Oracle,
) -> None:
    first = processes(asked_oracle)
    fork = os.fork()
    if fork == 0:
        status = 1
        try:
            right = np.array_equal(asked_oracle({"x": X}, CASE)[0], 2 * X)
            status = 0 if right and processes(asked_oracle) != first else 2
            asked_oracle.close()
        finally:
            os._exit(status)
    assert os.waitpid(fork, 0)[1] == 0
    assert processes(asked_oracle) == first
    assert np.array_equal(asked_oracle({"x": X}, CASE)[0], 2 * X)


@pytest.mark.parametrize("end", ["", "os.kill(os.getpid(), 9)"], ids=["exits", "is killed"])
def test_nothing_is_left_when_the_program_ends(end: str) -> None:
    script = f"""
import os
import numpy as np
from kernelcast.backends._inputs import make_inputs
from kernelcast.backends._oracle import Oracle
from kernelcast.backends._proof import detect_sandbox
from kernelcast.problems import load_problem
problem = load_problem("matmul")
case = problem.cases[-1]
oracle = Oracle(problem, detect_sandbox())
oracle(make_inputs(problem, case, np.random.default_rng(0)), case)
print(oracle._process._process.pid, oracle._process._worker_pid, flush=True)
os.read(0, 1)
{end}
"""
    program = subprocess.Popen(
        [sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert program.stdout is not None
    started = [(int(pid), process_started(int(pid))) for pid in program.stdout.readline().split()]
    assert all(is_alive(*each) for each in started)
    program.communicate("x")
    assert len(started) == 2
    assert wait_until_gone(started) == []


def test_a_question_that_is_interrupted_ends_it(sandbox: Sandbox) -> None:
    """A late answer would be taken for that of the next question."""
    source = body("while x[0]: pass\nreturn x")
    handler = signal.getsignal(signal.SIGINT)
    with Oracle(make_problem(source), sandbox, limit_s=60.0) as oracle:
        oracle({"x": X}, CASE)
        first = processes(oracle)
        signal.signal(signal.SIGINT, signal.default_int_handler)  # a job of a shell ignores it
        interrupter = threading.Timer(0.2, lambda: os.kill(os.getpid(), 2))
        interrupter.start()
        with pytest.raises(KeyboardInterrupt):
            oracle({"x": X + 1}, CASE)
        signal.signal(signal.SIGINT, handler)
        assert wait_until_gone(first) == []
        assert np.array_equal(oracle({"x": X}, CASE)[0], X)


def test_packages_that_the_sandbox_hides_are_a_setup_error(
    sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "path", [])
    with pytest.raises(SetupError, match="NumPy does not load"):
        asked(HONEST, sandbox)
