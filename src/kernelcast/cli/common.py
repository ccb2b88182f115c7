"""What several commands share: consoles, options, budgets, and running under a live view."""

from __future__ import annotations

import json
import logging
import os
import shlex
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, get_args

import click
from pydantic import ValidationError

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


_COUNT = click.IntRange(min=0)
_DOLLARS = click.FloatRange(min=0)


def budget_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """The options that cap what may be spent."""
    for option in (
        click.option("--proposal-usd", type=_DOLLARS, help="Cap on dollars for proposals."),
        click.option("--forecast-usd", type=_DOLLARS, help="Cap on dollars for forecasts."),
        click.option("--candidates", type=_COUNT, help="Stop after this many candidates."),
        click.option(
            "--device-seconds", type=click.FloatRange(min=0), help="Cap on device seconds."
        ),
        click.option("--measurements", "-n", type=_COUNT, help="Cap on kernels measured."),
    ):
        command = option(command)
    return command


def run_watched(search: Search, budget: Budget, title: str, *, quiet: bool) -> Result:
    """Run a search under a live view on standard error, with what the backends have to say."""
    progress = Progress(Terminal(stderr=True, quiet=quiet))
    search.callbacks.append(progress)
    search.begin(budget)
    progress.watch(search.state, title)
    logger = logging.getLogger("kernelcast")
    logger.addHandler(progress.log)
    try:
        return search.run(budget)
    finally:
        logger.removeHandler(progress.log)
        progress.close()


def check_writable(path: Path | None, option: str) -> None:
    """Refuse a file that could not be written at the end, before anything is spent."""
    if path is None:
        return
    folder = path.parent
    if path.is_dir():
        raise SetupError(f"{option} {path} is a folder: name a file in it")
    if not folder.is_dir():
        raise SetupError(
            f"{option}: there is no folder {folder}: mkdir -p {shlex.quote(str(folder))}"
        )
    if not os.access(path if path.exists() else folder, os.W_OK):
        raise SetupError(f"{option}: {path} cannot be written: name another file")


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


def budget_of(options: dict[str, Any], otherwise: Budget) -> Budget:
    """The caps that the options state, or else those of another budget."""
    caps = {
        "measurements": options["measurements"],
        "device_s": options["device_seconds"],
        "forecast_usd": options["forecast_usd"],
        "proposal_usd": options["proposal_usd"],
        "candidates": options["candidates"],
    }
    stated = {name: cap for name, cap in caps.items() if cap is not None}
    try:
        return Budget(**stated) if stated else otherwise
    except ValidationError as error:
        raise SetupError(f"a cap must be a number from 0 on: {error.errors()[0]['msg']}") from error
