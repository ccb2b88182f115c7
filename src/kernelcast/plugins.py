"""Components by name: one entry-point group, from which recorded specs rebuild a run's parts.

A package adds a component by an entry point in the group `kernelcast`, named `<kind>.<name>`:

    [project.entry-points.kernelcast]
    "strategy.mine" = "my_package:MyStrategy"

The built-in parts are registered the same way. A component is built from JSON-able options, so
that the spec in a run's first event is enough to build it again.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib.metadata import entry_points
from typing import Any, Literal

from kernelcast.errors import SetupError, UnknownComponent
from kernelcast.events import ComponentSpec

GROUP = "kernelcast"
Kind = Literal["proposer", "forecaster", "policy", "strategy", "backend", "farm"]


def names(kind: Kind) -> list[str]:
    """The installed components of a kind."""
    prefix = f"{kind}."
    found = {entry.name for entry in entry_points(group=GROUP) if entry.name.startswith(prefix)}
    return sorted(name.removeprefix(prefix) for name in found)


def build(kind: Kind, spec: ComponentSpec, **injected: Any) -> Any:
    """The component a spec names; `injected` are the live objects it needs of its siblings."""
    found = entry_points(group=GROUP, name=f"{kind}.{spec.name}")
    if not found:
        raise UnknownComponent(
            f"no {kind} is called {spec.name!r}; installed: {', '.join(names(kind)) or 'none'}"
        )
    entry = next(iter(found))
    try:
        component = entry.load()
    except (ImportError, AttributeError) as error:
        raise SetupError(
            f"{kind} {spec.name!r} is registered as {entry.value!r}, which cannot be imported "
            f"({error}): install its package again, or remove it"
        ) from error
    try:
        return component(**spec.options, **injected)
    except (TypeError, ValueError) as error:
        raise SetupError(f"cannot build {kind} {spec.name!r} from its options: {error}") from error


def build_stated(kind: Kind, stated: Mapping[str, Any]) -> Any:
    """The component that a table states: its `name`, and its options beside it."""
    options = {key: value for key, value in stated.items() if key != "name"}
    if "name" not in stated:
        raise SetupError(f"a {kind} is stated by its name and options, not by {dict(stated)}")
    return build(kind, ComponentSpec(name=str(stated["name"]), options=options))
