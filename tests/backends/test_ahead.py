"""Processes that wait for their measurement: on children that are made of Python."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import Future
from typing import cast

import pytest

from kernelcast.backends._ahead import Ahead
from kernelcast.backends._arena import Arena
from kernelcast.backends._child import Child
from kernelcast.errors import SetupError
from kernelcast.types import Case

from .conftest import make_problem

ONE, OTHER = Arena.of(make_problem(N=10)), Arena.of(make_problem(N=20))


class Waiting:
    """A process that does nothing."""

    def __init__(self, arena: Arena) -> None:
        self.arena, self.alive = arena, True

    def close(self) -> None:
        self.alive = False


class Starter:
    """Starts children, as slowly as it is let, and notes them."""

    def __init__(self) -> None:
        self.made: list[Waiting] = []
        self.errors: list[SetupError] = []
        self.threads: set[int] = set()
        self.go = threading.Event()
        self.go.set()

    def __call__(self, arena: Arena) -> Child:
        assert self.go.wait(60.0)
        self.threads.add(threading.get_ident())
        if self.errors:
            raise self.errors.pop()
        self.made.append(Waiting(arena))
        return cast(Child, self.made[-1])


@pytest.fixture
def starter() -> Starter:
    return Starter()


@pytest.fixture
def ahead(starter: Starter) -> Iterator[Ahead[Child]]:
    ahead = Ahead(starter)
    yield ahead
    ahead.close()


def waiting(ahead: Ahead[Child]) -> list[Child]:
    futures: list[Future[Child]] = ahead._waiting
    return [future.result(60.0) for future in futures]


def test_two_are_started_in_the_background_and_no_more(
    ahead: Ahead[Child], starter: Starter
) -> None:
    starter.go.clear()
    ahead.start(ONE)  # returns although nothing can start yet
    assert starter.made == []
    starter.go.set()
    first = waiting(ahead)
    ahead.start(ONE)
    assert waiting(ahead) == first
    assert len(starter.made) == 2
    assert threading.get_ident() not in starter.threads


def test_a_waiting_one_is_taken_with_the_arena_of_now(
    ahead: Ahead[Child], starter: Starter
) -> None:
    ahead.start(ONE)
    first = waiting(ahead)
    hidden = Case(name="hidden 0", dimensions={"N": 5, "K": 2})
    arena = Arena.of(ONE.problem, [hidden])
    taken = [ahead.take(arena) for _ in range(3)]
    assert set(taken[:2]) == set(first)
    assert taken[2] not in first  # of its own, at once
    assert all(child.arena is arena for child in taken)
    assert all(child.alive for child in taken)


@pytest.mark.parametrize("way", ["start", "take"])
def test_those_of_another_problem_are_ended(
    ahead: Ahead[Child], starter: Starter, way: str
) -> None:
    ahead.start(ONE)
    first = waiting(ahead)
    if way == "start":
        ahead.start(OTHER)
        assert {child.arena.problem.id for child in waiting(ahead)} == {OTHER.problem.id}
    else:
        assert ahead.take(OTHER).arena is OTHER
    assert not any(child.alive for child in first)


def test_one_that_has_died_is_not_used(ahead: Ahead[Child], starter: Starter) -> None:
    ahead.start(ONE)
    dead, living = waiting(ahead)
    dead.close()
    assert ahead.take(ONE) is living
    assert ahead.take(ONE) is not dead


def test_an_error_of_the_background_is_raised_where_one_is_needed(
    ahead: Ahead[Child], starter: Starter
) -> None:
    starter.errors = [SetupError("no sandbox")]
    ahead.start(ONE)
    ahead.start(ONE)
    assert len(waiting(ahead)) == 2  # the one that failed was replaced
    starter.errors = [SetupError("no sandbox")] * 3
    ahead.start(OTHER)
    for future in ahead._waiting:
        assert isinstance(future.exception(60.0), SetupError)
    with pytest.raises(SetupError, match="no sandbox"):
        ahead.take(OTHER)
    assert ahead.take(OTHER).arena is OTHER  # when the cause is gone


def test_closing_ends_all(ahead: Ahead[Child], starter: Starter) -> None:
    ahead.start(ONE)
    taken = ahead.take(ONE)
    ahead.close()
    assert len(starter.made) == 2
    assert sorted(child.alive for child in starter.made) == [False, True]
    assert taken.alive  # it is its user's
    ahead.close()
