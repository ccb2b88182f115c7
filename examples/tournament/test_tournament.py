"""The suite that kernelcast's own strategies pass, and what is particular to this one."""

from __future__ import annotations

from kernelcast import Node
from kernelcast.testing import StrategyContract
from kernelcast_tournament import Tournament


class TestTournament(StrategyContract):
    """Holds it to the contract."""

    def make(self) -> Tournament:
        """The strategy under test."""
        return Tournament()

    def test_a_tournament_of_all_is_won_by_the_fastest(self) -> None:
        """Unless there was no new best for long: then anyone may win."""
        archive = [
            Node(kernel_id=str(speed), parent_id=None, log2_speedup=speed, origin="measured")
            for speed in range(8)
        ]
        everyone = Tournament(size=8, patience=10)
        assert everyone.select(archive, 2, seed=0) == ["7", "6"]
        drawn = {everyone.select(archive, 1, seed, stale=80)[0] for seed in range(100)}
        assert len(drawn) == 8
