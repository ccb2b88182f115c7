"""The five parts of a search, and the one way to state a run by files and settings.

A setting is a dotted key and its value: `policy.audit_share = 0.2` is the option `audit_share` of
the policy, and `policy = "selective"` is short for `policy.name`. Files (`search.toml`) hold the
same keys as TOML tables.
"""

from __future__ import annotations

import tomllib
from collections.abc import Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

from pydantic import ValidationError

from kernelcast import plugins
from kernelcast.devices import find_device
from kernelcast.errors import SetupError
from kernelcast.events import ComponentSpec, RunSpec
from kernelcast.problems import load_problem
from kernelcast.protocols import Farm, Forecaster, Policy, Proposer, Strategy
from kernelcast.types import Budget, Problem

DEFAULT_PARTS: Mapping[plugins.Kind, str] = {
    "proposer": "template",
    "forecaster": "trees",
    "policy": "selective",
    "strategy": "puct",
    "farm": "local",
}
_TUNED: Mapping[plugins.Kind, str] = {"proposer": "tuner", "policy": "measure_all"}
_CHOOSING = ("proposer", "forecaster", "policy", "strategy")
KINDS: tuple[plugins.Kind, ...] = get_args(plugins.Kind)
_RUN_KEYS = ("seed", "inspect", "reuse")
_GPU_BACKENDS = frozenset({"cuda", "triton"})
KEYS = ("problem", *_RUN_KEYS, "budget", "store", "name", *KINDS)
"""First words of the keys that state a run."""
_FORECASTER_ONLY = ("ask", "samples", "bins", "think", "names")


@dataclass(frozen=True)
class Parts:
    """The five parts of a search, as live objects."""

    proposer: Proposer
    forecaster: Forecaster
    policy: Policy
    strategy: Strategy
    farm: Farm

    @classmethod
    def build(
        cls,
        components: Mapping[str, ComponentSpec],
        problem: Problem,
        farm: Farm | None = None,
    ) -> Parts:
        """Build the parts that a spec names, and the default of those that it leaves out.

        A `farm` that exists already takes the place of the one in the spec. A new farm builds the
        backend, where the device is.
        """
        defaults = _default_parts(problem, {kind: spec.name for kind, spec in components.items()})

        def spec(kind: plugins.Kind) -> ComponentSpec:
            return components.get(kind, ComponentSpec(name=defaults[kind]))

        def part(kind: plugins.Kind, **injected: Any) -> Any:
            return plugins.build(kind, spec(kind), **injected)

        return cls(
            proposer=part("proposer"),
            forecaster=part("forecaster"),
            policy=part("policy"),
            strategy=part("strategy"),
            farm=part("farm", backend=spec("backend")) if farm is None else farm,
        )


def _default_parts(problem: Problem, stated: Mapping[str, str | None]) -> dict[plugins.Kind, str]:
    """Return the names of the parts that a run has if it does not name them.

    A problem with a template is tuned if no part that chooses is stated: the proposer chooses, and
    all that it proposes is measured. The backend has the name of the problem's language.

    Args:
        problem: The problem of the run.
        stated: Names of the parts that are stated, by kind; None where only options are.
    """
    chosen = not stated.keys().isdisjoint(_CHOOSING)
    tunes = stated.get("proposer") == "tuner" or (problem.template is not None and not chosen)
    return {**DEFAULT_PARTS, "backend": problem.language, **(_TUNED if tunes else {})}


@dataclass(frozen=True)
class RunRequest:
    """A run to be made: its problem, spec, budget, and optionally its store and name."""

    problem: Problem
    spec: RunSpec
    budget: Budget
    store: str | None = None
    name: str | None = None


def read_run(
    settings: Mapping[str, Any],
    *,
    config: str | Path | None = None,
    problem: Problem | str | None = None,
    model: Mapping[str, Any] | None = None,
    known: Collection[str] = KEYS,
) -> RunRequest:
    """Read a run from settings, over a file, over the defaults.

    A part's options in the file hold unless the settings name another part.

    Args:
        settings: Values by dotted key, e.g. `{"policy.audit_share": 0.2}`.
        config: TOML file; a problem folder and a store file are relative to the file's folder.
        problem: The problem or its name, in place of the setting `problem`.
        model: Options of every part that is a language model; how a model is asked to forecast
            concerns the forecaster alone.
        known: First words of the allowed keys.

    Raises:
        SetupError: The file cannot be read, or something unknown or impossible is stated.
    """
    file = {} if config is None else _read_file(Path(config), known)
    tables = nested(settings, known)
    merged = {**file, **tables}
    problem = problem or merged.get("problem")
    if problem is None:
        where = f"{config}: " if config else ""
        raise SetupError(f'{where}name a problem, for example: problem = "softmax"')
    loaded = problem if isinstance(problem, Problem) else load_problem(problem)
    stated: dict[str, str | None] = {
        kind: {**file.get(kind, {}), **tables.get(kind, {})}.get("name")
        for kind in KINDS
        if kind in merged
    }
    defaults = _default_parts(loaded, stated)
    components = {
        kind: part_spec(kind, tables.get(kind, {}), model, {"name": default, **file.get(kind, {})})
        for kind, default in defaults.items()
    }
    if not isinstance(problem, Problem) and _is_for_gpu(components["backend"]):
        loaded = load_problem(problem, device="gpu")
    # A GPU's compilers and emulator leave the device alone. On a CPU they would disturb its times.
    values = {"inspect": components["backend"].name in _GPU_BACKENDS} | merged
    try:
        spec = RunSpec(components=components, **{k: values[k] for k in _RUN_KEYS if k in values})
    except ValidationError as error:
        raise SetupError(_first_error(error)) from error
    budget = read_budget({"budget": merged.get("budget", {})})
    return RunRequest(loaded, spec, budget, merged.get("store"), merged.get("name"))


def _is_for_gpu(backend: ComponentSpec) -> bool:
    """Whether a backend measures on a GPU, by its own name or that of its device."""
    if backend.name in _GPU_BACKENDS:
        return True
    with suppress(SetupError):  # the backend says what it does not know
        return find_device(str(backend.options.get("device", "cpu"))).kind == "gpu"
    return False


def part_spec(
    kind: plugins.Kind,
    table: Mapping[str, Any],
    model: Mapping[str, Any] | None = None,
    base: Mapping[str, Any] | None = None,
) -> ComponentSpec:
    """Return the spec of a part from a table: its `name`, and its options beside it.

    Args:
        kind: Kind of the part.
        table: The table.
        model: More options, if the part is a language model.
        base: Table that `table` overrides, or replaces if it names another part.

    Raises:
        SetupError: It is a language model without an endpoint.
    """
    base = base or {}
    name = str(table.get("name") or base["name"])
    options = dict(base) if name == base.get("name") else {}
    if name == "llm":
        asked = kind == "forecaster"
        options |= {k: v for k, v in (model or {}).items() if asked or k not in _FORECASTER_ONLY}
    options = {key: value for key, value in (options | dict(table)).items() if key != "name"}
    if name == "llm":
        if not options.get("base_url") or not options.get("model"):
            raise SetupError(f"a language model as {kind} needs --base-url and --model")
        if options.get("samples", 1) != 1:
            options.setdefault("temperature", 1.0)
    return ComponentSpec(name=name, options=options)


def read_budget(settings: Mapping[str, Any]) -> Budget:
    """Read the caps that settings state, e.g. `{"budget.measurements": 60}`.

    Raises:
        SetupError: A cap is unknown or no number.
    """
    caps = nested(settings, ("budget",)).get("budget", {})
    known = sorted(Budget.model_fields)
    if not isinstance(caps, Mapping) or not set(caps) <= set(known):
        raise SetupError(f"a budget has the caps {', '.join(known)}, not {caps}")
    try:
        return Budget(**caps)
    except ValidationError as error:
        raise SetupError(f"a cap must be a number from 0 on: {_first_error(error)}") from error


def _read_file(path: Path, known: Collection[str]) -> dict[str, Any]:
    """Read a file's settings, with its paths relative to the working folder."""
    try:
        file = nested(tomllib.loads(path.read_text()), known, f"{path}: ")
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise SetupError(f"{path} cannot be read: {error}") from error
    if (path.parent / file.get("problem", "")).is_dir() and "problem" in file:
        file["problem"] = path.parent / file["problem"]
    if "store" in file and "://" not in file["store"]:
        file["store"] = str(path.parent / file["store"])
    return file


def nested(settings: Mapping[str, Any], known: Collection[str], where: str = "") -> dict[str, Any]:
    """Turn dotted keys into tables, and refuse those whose first word is not known."""
    nested: dict[str, Any] = {}
    for key, value in settings.items():
        *tables, last = key.split(".")
        if key in KINDS and not isinstance(value, Mapping):
            tables, last = [key], "name"
        table = nested
        for name in tables:
            table = table.setdefault(name, {})
            if not isinstance(table, dict):
                raise SetupError(f"{where}{key}: {name} is stated as a value already")
        table[last] = value
    if unknown := sorted(set(nested) - set(known)):
        raise SetupError(f"{where}unknown keys {unknown}; known: {sorted(known)}")
    for name in ("problem", "store", "name"):
        if not isinstance(nested.get(name, ""), str):
            raise SetupError(f"{where}{name} is a text, not {nested[name]!r}")
    return nested


def _first_error(error: ValidationError) -> str:
    first = error.errors()[0]
    return f"{'.'.join(map(str, first['loc']))}: {first['msg']}"
