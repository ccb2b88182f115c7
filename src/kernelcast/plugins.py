"""Components by name, from one entry-point group.

A package adds a component by an entry point in the group `kernelcast`, named `<kind>.<name>`:

    [project.entry-points.kernelcast]
    "strategy.mine" = "my_package:MyStrategy"

The built-in parts are registered the same way. A language (`languages.py`) is registered as a
`Dialect`, which is data. A component is built from JSON-able options, so
the spec in a run's first event is enough to build it again.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from importlib.metadata import entry_points
from typing import Any, Literal

from kernelcast.errors import SetupError, UnknownComponent
from kernelcast.events import ComponentSpec

GROUP = "kernelcast"
Kind = Literal["proposer", "forecaster", "policy", "strategy", "backend", "farm"]
_Registered = Kind | Literal["language"]
_TYPES: dict[str, Any] = {"int": int, "float": (int, float), "bool": bool, "str": str}


def names(kind: _Registered) -> list[str]:
    """Return the names of what is installed of a kind."""
    prefix = f"{kind}."
    registered = {entry.name for entry in entry_points(group=GROUP)}
    return sorted(name.removeprefix(prefix) for name in registered if name.startswith(prefix))


def find(kind: _Registered, name: str) -> Any:
    """Return what is registered under a name.

    Raises:
        UnknownComponent: No such name is installed.
        SetupError: It cannot be imported.
    """
    entries = entry_points(group=GROUP, name=f"{kind}.{name}")
    if not entries:
        raise UnknownComponent(
            f"no {kind} is called {name!r}; installed: {', '.join(names(kind)) or 'none'}"
        )
    entry = next(iter(entries))
    try:
        return entry.load()
    except (ImportError, AttributeError) as error:
        raise SetupError(
            f"{kind} {name!r} is registered as {entry.value!r}, which cannot be imported "
            f"({error}): install its package again, or remove it"
        ) from error


def build(kind: Kind, spec: ComponentSpec, **injected: Any) -> Any:
    """Build the component that a spec names.

    Args:
        kind: Kind of the component.
        spec: Its name and options.
        injected: Live objects that it needs, such as a farm's backend.

    Raises:
        UnknownComponent: No such component is installed.
        SetupError: It cannot be imported, or does not take these options.
    """
    component = find(kind, spec.name)
    _check_options(kind, spec, component, injected)
    try:
        return component(**spec.options, **injected)
    except (TypeError, ValueError) as error:
        raise SetupError(f"cannot build {kind} {spec.name!r} from its options: {error}") from error


def _check_options(
    kind: Kind, spec: ComponentSpec, component: Callable[..., Any], injected: Mapping[str, Any]
) -> None:
    """Refuse options that a component does not take, and plain values of another type."""
    parameters = inspect.signature(component).parameters
    takes_any = any(option.kind is option.VAR_KEYWORD for option in parameters.values())
    known = {name for name in parameters if name not in {"name", *injected}}
    wrong = f"cannot build {kind} {spec.name!r} from its options"
    for name, value in spec.options.items():
        if name not in known and not takes_any:
            listed = ", ".join(f"{kind}.{option}" for option in sorted(known)) or "none"
            raise SetupError(f"{wrong}: unknown {kind}.{name}; known: {listed}")
        wanted = str(parameters[name].annotation) if name in known else ""
        if wanted in _TYPES and not isinstance(value, _TYPES[wanted]):
            raise SetupError(f"{wrong}: {kind}.{name} is a value of type {wanted}, not {value!r}")


def build_stated(kind: Kind, table: Mapping[str, Any]) -> Any:
    """Build the component that a table states by its `name` and, beside it, its options."""
    options = {key: value for key, value in table.items() if key != "name"}
    if "name" not in table:
        raise SetupError(f"a {kind} is stated by its name and options, not by {dict(table)}")
    return build(kind, ComponentSpec(name=str(table["name"]), options=options))
