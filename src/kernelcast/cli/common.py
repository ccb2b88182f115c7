"""What several commands share: consoles, options, budgets, and running under a live view."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, get_args

import click

from kernelcast.bins import DEFAULT_BINS, PAPER_BINS
from kernelcast.errors import SetupError
from kernelcast.events import ComponentSpec
from kernelcast.forecasters.llm import Way
from kernelcast.report.console import Progress
from kernelcast.report.terminal import Terminal
from kernelcast.search import Result, Search
from kernelcast.store import DEFAULT_STORE
from kernelcast.types import Budget, Problem

OUT = Terminal()
ERR = Terminal(stderr=True)
BINS = {each.name: each for each in (DEFAULT_BINS, PAPER_BINS)}


def store_option(command: Callable[..., Any]) -> Callable[..., Any]:
    """The option that names the store."""
    return click.option(
        "--store",
        envvar="KERNELCAST_STORE",
        default=str(DEFAULT_STORE),
        show_default=True,
        help="The store: a file (SQLite) or a database URL.",
    )(command)


json_option = click.option("--json", "as_json", is_flag=True, help="One JSON object on stdout.")


def model_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """The options that name a language model's endpoint."""
    for option in (
        click.option("--model", help="Model name at the endpoint."),
        click.option(
            "--base-url", help="OpenAI-compatible endpoint, e.g. http://localhost:8000/v1."
        ),
        click.option(
            "--api-key-env",
            default="KERNELCAST_API_KEY",
            show_default=True,
            help="Environment variable that holds the key; local servers need none.",
        ),
        click.option(
            "--price-out",
            "usd_per_million_output_tokens",
            type=float,
            help="Dollars per million tokens written (default: looked up).",
        ),
        click.option(
            "--price-in",
            "usd_per_million_input_tokens",
            type=float,
            help="Dollars per million tokens read (default: looked up).",
        ),
    ):
        command = option(command)
    return command


def ask_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """The options that say how a language model is asked to forecast."""
    for option in (
        click.option(
            "--set",
            "more",
            multiple=True,
            metavar="OPTION=VALUE",
            help="Any other option of the model or its endpoint, e.g. concurrency=32, "
            "temperature=null, output_limit=max_completion_tokens (repeat).",
        ),
        click.option(
            "--bins",
            type=click.Choice(tuple(BINS)),
            default="default",
            show_default=True,
            help="Ours, or the paper's eight.",
        ),
        click.option(
            "--samples",
            type=click.IntRange(min=1),
            default=1,
            show_default=True,
            help="Reasoned answers to pool; several are drawn at temperature 1.",
        ),
        click.option(
            "--ask",
            type=click.Choice(get_args(Way)),
            default="reasoned",
            show_default=True,
            help="A model: by a rationale and points, by one letter, or which of two is faster.",
        ),
    ):
        command = option(command)
    return command


def trust_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """The options that choose the backend and say how kernels must be confined."""
    for option in (
        click.option(
            "--allow-unsafe", is_flag=True, help="Measure even where kernels cannot be confined."
        ),
        click.option(
            "--require",
            type=click.Choice(["S1", "S2", "S3"]),
            help="Refuse to measure below this sandbox level (see `kernelcast doctor`).",
        ),
        click.option(
            "--backend",
            help="Backend that compiles and measures (default: the one of the problem's language).",
        ),
    ):
        command = option(command)
    return command


device_option = click.option(
    "--device", help="Device to measure on, by name (default: the one of this machine)."
)


def backend_spec(
    problem: Problem,
    *,
    backend: str | None = None,
    device: str | None = None,
    require: str | None = None,
    allow_unsafe: bool = False,
) -> ComponentSpec:
    """The backend for a problem: that of its language, unless another one is named."""
    options: dict[str, Any] = {"require": require, "allow_unsafe": allow_unsafe}
    if device is not None:
        options["device"] = device
    return ComponentSpec(name=backend or problem.language, options=options)


def budget_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """The options that cap what may be spent."""
    for option in (
        click.option("--proposal-usd", type=float, help="Cap on dollars for proposals."),
        click.option("--forecast-usd", type=float, help="Cap on dollars for forecasts."),
        click.option("--candidates", type=int, help="Stop after this many candidates."),
        click.option("--device-seconds", type=float, help="Cap on device seconds."),
        click.option("--measurements", "-n", type=int, help="Cap on kernels measured."),
    ):
        command = option(command)
    return command


def run_watched(search: Search, budget: Budget, title: str, *, quiet: bool) -> Result:
    """Run a search under a live view on standard error."""
    progress = Progress(Terminal(stderr=True, quiet=quiet))
    search.callbacks.append(progress)
    search.begin(budget)
    progress.watch(search.state, title)
    try:
        return search.run(budget)
    finally:
        progress.close()


MODEL_KEYS = (
    "base_url",
    "model",
    "api_key_env",
    "usd_per_million_input_tokens",
    "usd_per_million_output_tokens",
)
ASK_KEYS = ("ask", "samples", "bins", "more")


def component(name: str, model: dict[str, Any]) -> ComponentSpec:
    """A component by name; a language model gets its endpoint."""
    if name != "llm":
        return ComponentSpec(name=name)
    if not model["base_url"] or not model["model"]:
        raise SetupError("a language model needs --base-url and --model")
    return ComponentSpec(name="llm", options=model)


def asking(model: Mapping[str, Any], **fixed: Any) -> ComponentSpec:
    """The forecasting language model that `model_options` and `ask_options` describe."""
    stated = {name: value for name, value in model.items() if name != "more"}
    if stated["samples"] > 1:
        stated["temperature"] = 1.0
    return component("llm", {**stated, **set_options(model["more"]), **fixed})


def set_options(more: Sequence[str]) -> dict[str, Any]:
    """What `--set` states, by option; a value is JSON, or else the text itself."""
    stated: dict[str, Any] = {}
    for each in more:
        name, given, value = each.partition("=")
        if not given:
            raise SetupError(f"--set takes OPTION=VALUE, not {each!r}")
        try:
            stated[name] = json.loads(value)
        except ValueError:
            stated[name] = value
    return stated


def budget_of(options: dict[str, Any], default_measurements: int | None) -> Budget:
    """The budget the options state, or so many measurements where they state nothing."""
    caps = {
        "measurements": options["measurements"],
        "device_s": options["device_seconds"],
        "forecast_usd": options["forecast_usd"],
        "proposal_usd": options["proposal_usd"],
        "candidates": options["candidates"],
    }
    if all(cap is None for cap in caps.values()):
        caps["measurements"] = default_measurements
    return Budget(**caps)
