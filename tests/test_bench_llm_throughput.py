"""The prompts whose reuse `bench/llm_throughput.py` measures on a server, by their characters."""

from __future__ import annotations

from itertools import pairwise, takewhile

import llm_throughput
from kernelcast.forecasters.llm import LlmForecaster
from kernelcast.problems import load_problem


def test_little_of_a_prompt_differs_from_the_one_before() -> None:
    """A server that keeps the last prompt reads the rest alone."""
    asked = llm_throughput.queries(load_problem(llm_throughput.PROBLEM), 32, 0)
    forecaster = LlmForecaster(ask="direct", base_url="http://localhost:1/v1", model="m")
    prompts = [
        "\n".join(message["content"] for message in request.messages)
        for query in asked
        for request in forecaster.requests(query)
    ]
    assert len(set(prompts)) == len(prompts) == 32
    shared = sum(
        sum(1 for _ in takewhile(lambda two: two[0] == two[1], zip(one, other, strict=False)))
        for one, other in pairwise(prompts)
    )
    assert shared / sum(map(len, prompts[1:])) > 0.98
