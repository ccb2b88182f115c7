"""The five parts a search is made of, and how a spec or a file names them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from kernelcast import plugins
from kernelcast.events import ComponentSpec
from kernelcast.protocols import Farm, Forecaster, Policy, Proposer, Strategy
from kernelcast.types import Language

DEFAULT_PARTS: Mapping[plugins.Kind, str] = {
    "proposer": "template",
    "forecaster": "trees",
    "policy": "selective",
    "strategy": "puct",
    "farm": "local",
}


@dataclass(frozen=True)
class Parts:
    """The five parts a search is made of, as live objects."""

    proposer: Proposer
    forecaster: Forecaster
    policy: Policy
    strategy: Strategy
    farm: Farm

    @classmethod
    def build(cls, components: Mapping[str, ComponentSpec], language: Language = "cpp") -> Parts:
        """Build the parts that a spec names; a part it leaves out is the default.

        The default backend is the one that is named after the problem's `language`.
        """
        defaults = {**DEFAULT_PARTS, "backend": language}

        def part(kind: plugins.Kind, **injected: Any) -> Any:
            spec = components.get(kind, ComponentSpec(name=defaults[kind]))
            return plugins.build(kind, spec, **injected)

        return cls(
            proposer=part("proposer"),
            forecaster=part("forecaster"),
            policy=part("policy"),
            strategy=part("strategy"),
            farm=part("farm", backend=part("backend")),
        )
