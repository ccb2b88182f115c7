"""The five parts a search is made of, and how a spec or a file names them."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from kernelcast import plugins
from kernelcast.errors import SetupError
from kernelcast.events import ComponentSpec, RunSpec
from kernelcast.problems import load_problem
from kernelcast.protocols import Farm, Forecaster, Policy, Proposer, Strategy
from kernelcast.types import Budget, Language, Problem

DEFAULT_PARTS: Mapping[plugins.Kind, str] = {
    "proposer": "template",
    "forecaster": "trees",
    "policy": "selective",
    "strategy": "puct",
    "farm": "local",
}


def default_parts(language: Language) -> dict[plugins.Kind, str]:
    """The names of the parts of a search that names none; the backend is the language's."""
    return {**DEFAULT_PARTS, "backend": language}


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
        defaults = default_parts(language)

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


@dataclass(frozen=True)
class RunFile:
    """A search as a file (`search.toml`) states it: the problem, and what is not the default."""

    problem: Problem
    spec: RunSpec
    budget: Budget
    store: str | None = None
    name: str | None = None

    @classmethod
    def read(cls, path: str | Path) -> RunFile:
        """Read a file; a problem folder and a store file are relative to the file's folder.

        Raises:
            SetupError: The file is missing, is not TOML, or states something unknown.
        """
        path = Path(path)
        try:
            stated = tomllib.loads(path.read_text())
        except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
            raise SetupError(f"{path} cannot be read: {error}") from error
        known = {*cls.__dataclass_fields__, *RunSpec.model_fields, *DEFAULT_PARTS, "backend"}
        if unknown := sorted(set(stated) - (known - {"spec", "components"})):
            known_names = sorted(known - {"spec", "components"})
            raise SetupError(f"{path}: unknown keys {unknown}; known: {known_names}")
        if "problem" not in stated:
            raise SetupError(f'{path}: name a problem, for example: problem = "softmax"')
        folder = path.parent / str(stated["problem"])
        problem = load_problem(folder if folder.is_dir() else str(stated["problem"]))
        components = {}
        for kind, default in default_parts(problem.language).items():
            options = stated.pop(kind, None)
            if isinstance(options, dict):
                components[kind] = ComponentSpec(name=options.pop("name", default), options=options)
            elif options is not None:
                raise SetupError(f'{path}: write [{kind}] and below it name = "{options}"')
        store = stated.get("store")
        if store is not None and "://" not in store:
            store = str(path.parent / store)
        options = {key: stated[key] for key in RunSpec.model_fields if key in stated}
        try:
            return cls(
                problem,
                RunSpec(components=components, **options),
                Budget(**stated.get("budget", {})),
                store,
                stated.get("name"),
            )
        except (ValidationError, TypeError) as error:
            raise SetupError(f"{path}: {error}") from error
