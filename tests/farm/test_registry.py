"""How slots are divided between searches."""

from __future__ import annotations

from collections import Counter

import pytest

from kernelcast.farm._registry import fair_shares


def test_no_session_gets_more_than_it_wants_or_than_its_part() -> None:
    assert fair_shares({1: 1, 2: 9, 3: 9}, slots=7, turn=0) == {1: 1, 2: 3, 3: 3}
    assert fair_shares({1: 1, 2: 2}, slots=7, turn=3) == {1: 1, 2: 2}
    assert fair_shares({1: 5}, slots=0, turn=3) == {1: 0}
    assert fair_shares({}, slots=4, turn=1) == {}


@pytest.mark.parametrize(("sessions", "slots"), [(100, 64), (10, 64), (3, 4), (5, 1), (128, 64)])
def test_what_cannot_be_divided_passes_on_evenly(sessions: int, slots: int) -> None:
    wants = dict.fromkeys(range(sessions), slots)
    due: Counter[int] = Counter()
    for turn in range(sessions):
        shares = fair_shares(wants, slots, turn)
        assert sum(shares.values()) == slots
        assert max(shares.values()) - min(shares.values()) <= 1
        due.update(shares)
        # No session is more than one slot behind at any time.
        assert max(due.values()) - min(due.values()) <= 1
    assert set(due.values()) == {slots}
