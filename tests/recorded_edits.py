"""A model that answers with recorded edits: `tests/edits/<problem>/*.toml`, one answer a file.

They were written for this purpose, of all qualities, and each says what it is; `test_edits.py`
holds them to it. Asked for a child of a kernel, `RecordedModel` gives one of the answers that were
recorded on that very text, by the request's seed; of a text that it does not know, a whole kernel.
To put a kernel right, it takes the one that edits are asked of, which is the one below.
"""

from __future__ import annotations

import json
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Literal

from kernelcast.problems import load_problem
from tests.model_server import Reply

EDITS = Path(__file__).parent / "edits"
PROBLEMS = ("softmax", "layernorm", "matmul")

Quality = Literal["faster", "same", "slower", "compile_error", "wrong_result", "cheating", "crash"]


@dataclass(frozen=True)
class Edit:
    """One recorded answer, and the kernel that it makes of its parent."""

    problem: str
    number: str
    parent: str
    quality: Quality
    truthful: bool
    answer: Mapping[str, Any]
    parent_source: str
    source: str

    @property
    def is_rewrite(self) -> bool:
        """Whether it holds the whole kernel."""
        return "kernel" in self.answer


@cache
def edits_of(problem: str) -> dict[str, Edit]:
    """The recorded answers on a problem, by number; a parent comes before its children."""
    found: dict[str, Edit] = {}
    for path in sorted((EDITS / problem).glob("*.toml")):
        stated = tomllib.loads(path.read_text())
        number, parent = path.name[:3], stated["parent"]
        if parent != "seed" and parent not in found:
            raise ValueError(f"{path}: its parent {parent!r} does not come before it")
        above = load_problem(problem).seed_source if parent == "seed" else found[parent].source
        found[number] = Edit(
            problem=problem,
            number=number,
            parent=parent,
            quality=stated["quality"],
            truthful=stated["truthful"],
            answer={k: stated[k] for k in ("idea", "moves", "edits", "kernel") if k in stated},
            parent_source=above,
            source=_applied(stated, above, path),
        )
    return found


def _applied(stated: Mapping[str, Any], parent: str, path: Path) -> str:
    if "kernel" in stated:
        return str(stated["kernel"])
    text = parent
    for edit in stated["edits"]:
        if text.count(edit["search"]) != 1:
            raise ValueError(f"{path}: {edit['search']!r} is not in its parent exactly once")
        text = text.replace(edit["search"], edit["replace"])
    return text


class RecordedModel:
    """Answers proposals on one problem; a function of the request alone, so runs repeat."""

    def __init__(self, problem: str) -> None:
        self._edits = list(edits_of(problem).values())

    def __call__(self, request: dict[str, Any]) -> Reply:
        """One of the answers that fit, by the request's seed."""
        edited = _edited(request["messages"][-1]["content"])
        fitting = [each for each in self._edits if each.parent_source.strip() == edited]
        fitting = fitting or [each for each in self._edits if each.is_rewrite]
        chosen = fitting[int(request.get("seed") or 0) % len(fitting)]
        return Reply(json.dumps(chosen.answer))


def _edited(asked: str) -> str:
    """The kernel in a prompt that edits are of, without the fences around it."""
    _, repaired, fenced = asked.partition("\n# Kernel to put right\n")
    if not repaired:
        fenced = asked.partition("\n# Parent\n")[2].partition("\n# Result of the parent\n")[0]
    return fenced.strip().partition("\n")[2].rpartition("\n")[0].strip()
