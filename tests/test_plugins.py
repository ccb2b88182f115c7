from __future__ import annotations

from pathlib import Path

import pytest

from kernelcast import plugins
from kernelcast.errors import SetupError, UnknownComponent
from kernelcast.events import ComponentSpec
from kernelcast.policies import TopK

THIRD_PARTY = """
class Mine:
    name = "mine"

    def __init__(self, depth=1, backend=None):
        if depth < 0:
            raise ValueError("depth is at least 0")
        self.depth = depth
        self.backend = backend

    def select(self, archive, count, seed):
        return [archive[0].kernel_id]
"""


@pytest.fixture
def third_party(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A package as `pip install` leaves it: a module, and metadata with its entry points."""
    (tmp_path / "kernelcast_third_party.py").write_text(THIRD_PARTY)
    metadata = tmp_path / "kernelcast_third_party-1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text(
        "Metadata-Version: 2.1\nName: kernelcast-third-party\nVersion: 1.0\n"
    )
    (metadata / "entry_points.txt").write_text(
        "[kernelcast]\n"
        "strategy.mine = kernelcast_third_party:Mine\n"
        "strategy.gone = kernelcast_third_party:Gone\n"
        "strategy.lost = kernelcast_no_such_module:Lost\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))


def test_the_built_in_parts_are_known() -> None:
    assert {"llm", "template"} <= set(plugins.names("proposer"))
    assert {"llm", "roofline", "trees"} <= set(plugins.names("forecaster"))
    assert {"measure_all", "selective", "top_k"} <= set(plugins.names("policy"))
    assert {"greedy", "puct"} <= set(plugins.names("strategy"))
    assert "cpp" in plugins.names("backend")
    assert "local" in plugins.names("farm")


@pytest.mark.parametrize("kind", ["proposer", "forecaster", "policy", "strategy"])
def test_a_built_in_part_is_known_by_its_own_name(kind: plugins.Kind) -> None:
    needs_options = {"llm", "pool"}  # an endpoint, a file of rows
    for name in set(plugins.names(kind)) - needs_options:
        assert plugins.build(kind, ComponentSpec(name=name)).name == name


def test_options_reach_the_component() -> None:
    spec = ComponentSpec(name="top_k", options={"k": 2, "pool_size": 8})
    again = ComponentSpec.model_validate_json(spec.model_dump_json())
    assert plugins.build("policy", again) == TopK(k=2, pool_size=8)


@pytest.mark.usefixtures("third_party")
def test_a_third_party_component_is_found_and_built() -> None:
    assert {"mine", "puct"} <= set(plugins.names("strategy"))
    assert "mine" not in plugins.names("policy")
    live = object()
    built = plugins.build(
        "strategy", ComponentSpec(name="mine", options={"depth": 3}), backend=live
    )
    assert (built.depth, built.backend) == (3, live)


def test_an_unknown_name_is_told_with_the_known_ones() -> None:
    with pytest.raises(UnknownComponent, match=r"no strategy is called 'mine'; .*greedy.*puct"):
        plugins.build("strategy", ComponentSpec(name="mine"))


def test_an_unknown_option_is_told_with_the_component() -> None:
    with pytest.raises(SetupError, match=r"policy 'top_k'.*unknown policy.size; known: policy.k"):
        plugins.build("policy", ComponentSpec(name="top_k", options={"size": 3}))


@pytest.mark.usefixtures("third_party")
def test_a_refused_option_is_told_with_the_component() -> None:
    with pytest.raises(SetupError, match=r"strategy 'mine'.*depth is at least 0"):
        plugins.build("strategy", ComponentSpec(name="mine", options={"depth": -1}))


@pytest.mark.usefixtures("third_party")
@pytest.mark.parametrize("name", ["gone", "lost"])
def test_a_component_that_cannot_be_imported_is_told(name: str) -> None:
    with pytest.raises(SetupError, match="install its package again"):
        plugins.build("strategy", ComponentSpec(name=name))
