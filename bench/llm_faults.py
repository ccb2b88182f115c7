"""A model endpoint that misbehaves: each fault ends as its table says, and the ledger stays exact.

First every fault of `_bad_server.FAULTS` is played to a client for ever: the reply must have the
outcome, the number of attempts and the bill that the table states, and the set-up errors must be
`ModelError`. Then a search runs to its end on an endpoint of which a fifth of the answers is
faulty; the dollars in its ledger are compared with the books of the server, which are kept apart.

    python bench/llm_faults.py [--quick] [--seed 0] [--out FILE]

Nothing is read from the network but loopback; measurements are made up, for what is on trial is the
client. The last line is JSON: `faults` kinds of fault, `untyped` of them with another outcome than
stated, `ledger_error_usd` of the run.
"""

from __future__ import annotations

import os
import random
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

from _bad_server import FAULTS, BadServer
from _result import bench_parser, report
from kernelcast.errors import ModelError
from kernelcast.events import Forecasted, RunSpec
from kernelcast.farm.local import LocalFarm
from kernelcast.forecasters.llm import LlmForecaster
from kernelcast.llm import Client, Endpoint, Request
from kernelcast.parts import Parts
from kernelcast.policies import Selective
from kernelcast.proposers.llm import LlmProposer
from kernelcast.search import Search
from kernelcast.store import Store
from kernelcast.strategies import Puct
from kernelcast.testing import SyntheticBackend, synthetic_problem
from kernelcast.types import Budget, Resource

FAULT_SHARE = 0.2
ATTEMPTS = 2
PRICES = {"usd_per_million_input_tokens": 3.0, "usd_per_million_output_tokens": 15.0}
SCHEMA = {
    "type": "object",
    "properties": {
        **{key: {"type": "integer"} for key in ("slower", "same", "faster", "fails")},
        "rationale": {"type": "string"},
    },
    "required": ["slower", "same", "faster", "fails", "rationale"],
}
QUESTION = Request(
    messages=[{"role": "user", "content": "How fast is it?"}], schema=SCHEMA, max_output_tokens=400
)


def usd(input_tokens: int, output_tokens: int) -> float:
    in_usd, out_usd = PRICES.values()
    return (input_tokens * in_usd + output_tokens * out_usd) / 1e6


def complaints(name: str) -> list[str]:
    """What a client does otherwise than the table says when this fault never ends."""
    fault = FAULTS[name]
    # Only those who never finish need be short of time; a busy machine may be slow to answer.
    timeout_s = 2.0 if fault.outcome == "timeout" else 20.0
    with BadServer(lambda _: name) as server:
        endpoint: dict[str, Any] = {"base_url": server.base_url, "model": "bad", **PRICES}
        client = Client(Endpoint(timeout_s=timeout_s, max_attempts=ATTEMPTS, **endpoint))
        try:
            reply = client.ask(QUESTION)
        except ModelError as error:
            told = [] if fault.outcome == "ModelError" else [f"raised {error}"]
            return told + ["charged a set-up error"] * (server.owed() != (0, 0))
        except Exception as error:  # the point of the bench: nothing else may come out
            return [f"raised {type(error).__name__}: {error}"]
        attempts = ATTEMPTS if fault.retried else 1
        stated: dict[str, tuple[Any, Any]] = {
            "outcome": (reply.outcome, fault.outcome),
            "attempts": ((reply.attempts, len(server.books)), (attempts, attempts)),
            "unknown": (reply.usage.unknown, fault.bill == "unknown"),
            "tokens": ((reply.usage.input_tokens, reply.usage.output_tokens), server.owed()),
            "usd": (round(reply.usage.usd, 12), round(usd(*server.owed()), 12)),
        }
    return [f"{what} {got}, not {want}" for what, (got, want) in stated.items() if got != want]


def faulty_run(folder: Path, candidates: int, seed: int) -> dict[str, Any]:
    """A search to its end with a fifth of all answers faulty, and its ledger against the books."""
    passing = [name for name, fault in FAULTS.items() if fault.outcome != "ModelError"]

    def choose(number: int) -> str:
        dice = random.Random(f"{seed} {number}")
        return dice.choice(passing) if dice.random() < FAULT_SHARE else ""

    problem = synthetic_problem()
    with (
        BadServer(
            choose, lambda n: problem.seed_source.replace("2.0f", f"2.0f + {n}.0f")
        ) as server,
        Store.open(folder / "store.db") as store,
    ):
        # Long enough for a sound answer on a busy machine: the server cannot know of one too late.
        endpoint: dict[str, Any] = dict(
            base_url=server.base_url, model="bad", timeout_s=4.0, max_output_tokens=400, **PRICES
        )
        search = Search(
            problem,
            Parts(
                proposer=LlmProposer(concurrency=8, **endpoint),
                forecaster=LlmForecaster(concurrency=8, **endpoint),
                policy=Selective(pool_size=12, turnover=4),
                strategy=Puct(),
                farm=LocalFarm(SyntheticBackend()),
            ),
            store,
            spec=RunSpec(seed=seed),
            name="faulty",
        )
        started_s = time.monotonic()
        state = search.run(Budget(candidates=candidates, measurements=candidates)).state
        seconds = time.monotonic() - started_s
        run = store.open_run("faulty")
        ledger = run.ledger()
        told = [e.forecast for e in run.events("forecasted") if isinstance(e, Forecasted)]
        owed = {
            Resource.FORECAST_USD: usd(*server.owed("rationale")),
            Resource.PROPOSAL_USD: usd(*server.owed("kernel")),
        }
        played = Counter(entry.fault for entry in server.books if entry.fault)
    return {
        "run_completed": state.considered == candidates and state.ended is not None,
        "run_candidates": state.considered,
        "run_requests": len(server.books),
        "run_faults": sum(played.values()),
        "run_kinds_of_fault": len(played),
        "run_forecasts_unparsed": sum(each.unparsed for each in told),
        "run_usd": round(sum(owed.values()), 6),
        "run_left_reserved_usd": abs(round(sum(ledger[each].reserved for each in owed), 9)),
        "run_s": round(seconds, 1),
        "ledger_error_usd": round(sum(abs(ledger[each].spent - owed[each]) for each in owed), 9),
    }


def main() -> int:
    parser = bench_parser(__doc__, quick="a run of 40 candidates, not 300")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    os.environ["KERNELCAST_API_KEY"] = "sk-bench-of-faults-0123456789"
    untyped = 0
    for name, fault in FAULTS.items():
        started_s = time.monotonic()
        wrong = complaints(name)
        untyped += bool(wrong)
        verdict = "; ".join(wrong) or "as stated"
        print(f"{name:28} {fault.outcome:13} {time.monotonic() - started_s:5.1f} s  {verdict}")
    with tempfile.TemporaryDirectory() as folder:
        run = faulty_run(Path(folder), 40 if options.quick else 300, options.seed)
    report({"faults": len(FAULTS), "untyped": untyped, **run}, options, "openai")
    return int(untyped > 0 or run["ledger_error_usd"] > 0 or not run["run_completed"])


if __name__ == "__main__":
    sys.exit(main())
