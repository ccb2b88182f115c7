"""What several commands share: consoles, options, and running under a live view.

Options that state a run are shorthand for settings (`kernelcast.parts`): a parameter called
`policy__pool_size` is the setting `policy.pool_size`, and `llm__model` is the setting `model` of
every part that is a language model.
"""

from __future__ import annotations

import json
import logging
import os
import shlex
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack, closing
from functools import reduce
from pathlib import Path
from typing import Any, get_args

import click
from click.core import ParameterSource

from kernelcast import cache
from kernelcast.bins import BINS
from kernelcast.canonical import NameStyle
from kernelcast.errors import SetupError
from kernelcast.events import ComponentSpec
from kernelcast.forecasters.llm import Way
from kernelcast.parts import DEFAULT_PARTS, nested, part_spec
from kernelcast.plugins import Kind
from kernelcast.report.console import Progress
from kernelcast.report.terminal import Terminal
from kernelcast.search import Result, Search
from kernelcast.store import DEFAULT_STORE
from kernelcast.types import Budget

OUT = Terminal()
ERR = Terminal(stderr=True)

Command = Callable[..., Any]
Decorator = Callable[[Command], Command]

POSITIVE = click.IntRange(min=1)
COUNT = click.IntRange(min=0)
AMOUNT = click.FloatRange(min=0)
ANY_PATH = click.Path(path_type=Path)
FOLDER = click.Path(file_okay=False, path_type=Path)
EXISTING_FILE = click.Path(exists=True, dir_okay=False, path_type=Path)


# ------------------------------------------------------------------------------------- options


def option(
    declaration: str, text: str, kind: Any = None, default: Any = None, **more: Any
) -> Decorator:
    """Return an option.

    Args:
        declaration: Its flags, and where they do not name it the parameter: `--json as_json`.
        text: Its help.
        kind: Type of its value; `bool` is a flag without a value.
        default: Value if it is not given.
        more: Further arguments of `click.option`.
    """
    more |= {"is_flag": True} if kind is bool else {"type": kind}
    return click.option(*declaration.split(), help=text, default=default, **more)


def _options(*options: Decorator) -> Decorator:
    """Return one decorator for several options, which help lists in this order."""
    return lambda command: reduce(lambda inner, outer: outer(inner), reversed(options), command)


def address_option(declaration: str, text: str) -> Decorator:
    """Return an option that takes HOST:PORT and gives both."""

    def read(_context: Any, _parameter: Any, value: str | None) -> tuple[str, int] | None:
        if value is None:
            return None
        host, _, port = value.rpartition(":")
        if not host or not port.isdigit() or int(port) > 65535:
            raise click.BadParameter(f"{value!r} is not HOST:PORT, e.g. 127.0.0.1:9464")
        return host, int(port)

    return option(declaration, text, metavar="HOST:PORT", callback=read)


json_option = option("--json as_json", "One JSON object on stdout.", bool)
store_option = option(
    "--store",
    "The store: a file (SQLite) or a database URL.",
    default=str(DEFAULT_STORE),
    envvar="KERNELCAST_STORE",
)
trust_store_option = option(
    "--trust-store",
    "Sign what was not written here with your key. Only for what you trust: kernelcast then runs "
    "its code and learns from its figures.",
    bool,
)
_PARTS: Mapping[Kind, str] = {
    "policy": "What is measured.  [default: {}; measure_all with the proposer tuner]",
    "strategy": "What becomes a parent.  [default: {}]",
    "forecaster": "What predicts.  [default: {}]",
    "proposer": "What writes kernels.  [default: tuner; {} if a policy, strategy or forecaster "
    "is named]",
}
part_options = _options(
    *(
        option(f"--{kind} {kind}__name", text.format(DEFAULT_PARTS[kind]))
        for kind, text in _PARTS.items()
    )
)
model_options = _options(
    option(
        "--base-url llm__base_url", "OpenAI-compatible endpoint, e.g. http://localhost:8000/v1."
    ),
    option("--model llm__model", "Model name at the endpoint."),
    option(
        "--api-key-env llm__api_key_env",
        "Environment variable that holds the key; local servers need none.",
        default="KERNELCAST_API_KEY",
    ),
    option(
        "--price-in llm__usd_per_million_input_tokens",
        "Dollars per million tokens read (default: looked up).",
        float,
    ),
    option(
        "--price-out llm__usd_per_million_output_tokens",
        "Dollars per million tokens written (default: looked up).",
        float,
    ),
)
ask_options = _options(
    option(
        "--ask llm__ask",
        "How a model answers: by a rationale and points, by one letter, by a letter and digits, or "
        "which of two is faster.",
        click.Choice(get_args(Way)),
        "reasoned",
    ),
    option(
        "--think llm__think",
        "Let a model without hidden reasoning write up to 1,500 characters before it answers.",
        bool,
    ),
    option(
        "--names llm__names",
        "Names of a kernel's author that a model reads: none, or those made of words of the field.",
        click.Choice(get_args(NameStyle)),
        "numbered",
    ),
    option(
        "--samples llm__samples",
        "Reasoned answers to pool; several are drawn at temperature 1.",
        POSITIVE,
        1,
    ),
    option(
        "--bins llm__bins",
        "Speedup bins: ours, or the paper's eight.",
        click.Choice(tuple(BINS)),
        "default",
    ),
    option(
        "--set more",
        "Any option of a part, e.g. policy.audit_share=0.2, forecaster.concurrency=32, "
        "forecaster.temperature=null (repeat).",
        multiple=True,
        metavar="KEY=VALUE",
    ),
)
trust_options = _options(
    option(
        "--backend backend__name",
        "Backend that compiles and measures (default: the one of the problem's language).",
    ),
    option(
        "--require backend__require",
        "Refuse to measure below this sandbox level (see `kernelcast doctor`).  [default: S2]",
        click.Choice(["S1", "S2", "S3"]),
    ),
    option(
        "--allow-unsafe backend__allow_unsafe",
        "Measure even where kernels cannot be kept from files and the network (S0, S1).",
        bool,
    ),
)
device_option = option(
    "--device backend__device", "Device to measure on, by name (default: the one of this machine)."
)
budget_options = _options(
    option("--measurements -n budget__measurements", "Cap on kernels measured.", COUNT),
    option("--device-seconds budget__device_s", "Cap on device seconds.", AMOUNT),
    option("--candidates budget__candidates", "Stop after this many candidates.", COUNT),
    option("--forecast-usd budget__forecast_usd", "Cap on dollars for forecasts.", AMOUNT),
    option("--proposal-usd budget__proposal_usd", "Cap on dollars for proposals.", AMOUNT),
)
watch_options = _options(
    address_option("--metrics", "Serve the search's metrics to Prometheus here."),
    option("--traces", "Send a trace of the search by OTLP; OTEL_* variables say where.", bool),
)


# ------------------------------------------------------------------------------------ settings


def read_options(
    options: Mapping[str, Any], implied: Kind | None = None
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the settings that the user's options state, and those of a language model.

    Args:
        options: Values by parameter.
        implied: Part that is a language model if the user names an endpoint and no such part.
    """
    given = {name: value for name, value in options.items() if is_given(name)}
    stated = dict(read_setting(text) for text in given.pop("more", ()))
    settings = {name.replace("__", "."): value for name, value in given.items()}
    model = {
        key.removeprefix("llm."): settings.pop(key)
        for key in list(settings)
        if key.startswith("llm.")
    }
    settings |= stated
    if implied and {"base_url", "model"} & set(model) and implied not in settings:
        settings.setdefault(f"{implied}.name", "llm")
    return settings, model


def is_given(parameter: str) -> bool:
    """Return whether the user stated this parameter of the running command."""
    source = click.get_current_context().get_parameter_source(parameter)
    return source is not ParameterSource.DEFAULT


def read_setting(text: str, option: str = "--set") -> tuple[str, Any]:
    """Read KEY=VALUE; the value is JSON, or else the text itself."""
    key, equals, value = text.partition("=")
    if not equals or not key:
        raise SetupError(f"{option} takes KEY=VALUE, e.g. policy.audit_share=0.2, not {text!r}")
    try:
        return key, json.loads(value)
    except ValueError:
        return key, value


def forecaster_specs(names: Sequence[str], options: Mapping[str, Any]) -> dict[str, ComponentSpec]:
    """Return specs by forecaster; settings are the language model's, or else those of all."""
    settings, model = read_options(options)
    table = nested(settings, ("forecaster",)).get("forecaster", {})
    specs = {}
    for name in names:
        own = {} if "llm" in names and name != "llm" else table
        specs[name] = part_spec("forecaster", {**own, "name": name}, model)
    check_model_is_asked(model, specs.values())
    return specs


def check_model_is_asked(model: Mapping[str, Any], parts: Iterable[ComponentSpec]) -> None:
    """Refuse settings of a language model if none of the parts is one."""
    stated = sorted(model.keys() - {"bins"})  # `eval` scores other forecasters by bins, too
    if stated and all(part.name != "llm" for part in parts):
        raise SetupError(
            f"{', '.join(stated)}: no part here is a language model; add --forecaster llm "
            "(or --proposer llm, if the command has it)"
        )


# ------------------------------------------------------------------------- running and writing


def use_cache() -> None:
    """Keep readings of texts and evidence in the user's cache until the running command ends."""
    click.get_current_context().with_resource(cache.using(cache.user_folder()))


def run_watched(
    search: Search,
    budget: Budget,
    title: str,
    *,
    quiet: bool,
    metrics: tuple[str, int] | None = None,
    traces: bool = False,
) -> Result:
    """Run a search under a live view on standard error, which also shows the backends' log.

    Args:
        search: The search.
        budget: Its caps.
        title: Title of the view.
        quiet: Show nothing.
        metrics: Host and port at which metrics are served.
        traces: Send a trace by OTLP.
    """
    with ExitStack() as watching:
        if metrics is not None:
            from kernelcast.metrics import search_families, serving

            families = serving(lambda: search_families(search.name, search.state), *metrics)
            url = watching.enter_context(families)
            Terminal(stderr=True, quiet=quiet).print(f"metrics: {url}", soft_wrap=True)
        if traces:
            from kernelcast.traces import Traces

            search.callbacks.append(watching.enter_context(closing(Traces(search.name))))
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
    """Refuse a file that cannot be written, before anything is spent."""
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
