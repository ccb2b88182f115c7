"""A store that was edited from outside, or came from elsewhere: shown as such, and never run.

The attacker knows the schema and all of the code, recomputes every checksum, and has no key.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
import zstandard
from click.testing import CliRunner, Result

from kernelcast import run as run_module
from kernelcast.cli import main
from kernelcast.errors import StoreError
from kernelcast.events import Measured, RunStarted, Voided
from kernelcast.keyring import Keyring
from kernelcast.parts import read_run
from kernelcast.problems import load_problem
from kernelcast.run import Run
from kernelcast.store import Store
from kernelcast.testing import example_history
from kernelcast.types import CacheKey, Measurement

ELSEWHERE = "not written here"
EARLIER = "written by an earlier kernelcast, without signatures"
Row = dict[str, Any]


@pytest.fixture(autouse=True)
def in_own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")


@pytest.fixture
def victim(location: str) -> str:
    """A store with the runs `victim` and `other`, written here."""
    history, kernels = example_history()
    assert isinstance(history[0], RunStarted)
    spec = read_run({}, problem=load_problem("softmax")).spec
    history[0] = history[0].model_copy(update={"spec": spec})
    with Store.open(location) as store:
        for name in ("victim", "other"):
            store.create_run(name).append(history, kernels)
    return location


class Attacker:
    """Writes to the database of a store, by none of kernelcast's code but the signing."""

    def __init__(self, location: str) -> None:
        url = location if "://" in location else f"sqlite:///{location}"
        self._engine = sa.create_engine(url.replace("postgresql://", "postgresql+psycopg://"))
        self.keyring = Keyring.new()

    def query(self, text: str, **values: Any) -> list[Row]:
        with self._engine.begin() as connection:
            result = connection.execute(sa.text(text), values)
            return [dict(row._mapping) for row in result] if result.returns_rows else []

    def close(self) -> None:
        self._engine.dispose()

    def events(self, run: str) -> list[Row]:
        of_run = "run_id = (SELECT id FROM runs WHERE name = :run)"
        return self.query(f"SELECT * FROM events WHERE {of_run} ORDER BY seq", run=run)

    def write(self, rows: Sequence[Row]) -> None:
        """Put these events in place of a run's, with their numbers and checksums made right."""
        run_id = rows[0]["run_id"]
        self.query("DELETE FROM events WHERE run_id = :run_id", run_id=run_id)
        crc = 0
        for seq, row in enumerate(rows):
            crc = zlib.crc32(row["payload"].encode(), crc)
            names = ", ".join(row)
            values = ", ".join(f":{name}" for name in row)
            numbered = {**row, "run_id": run_id, "seq": seq, "crc": crc}
            self.query(f"INSERT INTO events ({names}) VALUES ({values})", **numbered)

    def sign(self, run: str) -> None:
        """Sign a run's events as kernelcast does, with the attacker's key."""
        (about,) = self.query("SELECT name, created_at FROM runs WHERE name = :run", run=run)
        for row in self.events(run):
            place = (f"{about['name']}@{about['created_at']}", row["seq"], row["kind"], row["at"])
            mac = self.keyring.sign("event", *place, row["crc"], row["payload"])
            self.query(
                "UPDATE events SET mac = :mac WHERE run_id = :run_id AND seq = :seq",
                mac=mac,
                run_id=row["run_id"],
                seq=row["seq"],
            )


@pytest.fixture
def attacker(victim: str) -> Iterator[Attacker]:
    made = Attacker(victim)
    yield made
    made.close()


def invoke(*arguments: str) -> Result:
    return CliRunner().invoke(main, arguments, catch_exceptions=False)


def searched() -> Measurement:
    """Return a measurement of the example that its run gives to others."""
    measured = (event for event in example_history()[0] if isinstance(event, Measured))
    return next(event.measurement for event in measured if event.purpose == "search")


def opened(location: str, name: str = "victim") -> Run:
    with Store.open(location) as store:
        return store.open_run(name)


# ----------------------------------------------------------------------------------- attacks


def edit_first(rows: list[Row], edit: Callable[[Row], object]) -> list[Row]:
    started = json.loads(rows[0]["payload"])
    edit(started)
    rows[0]["payload"] = json.dumps(started)
    return rows


def another_oracle(rows: list[Row]) -> list[Row]:
    code = "open('canary', 'w')\ndef reference(x, *, N):\n    return x\n"
    return edit_first(rows, lambda started: started["problem"].update(oracle_source=code))


def another_compiler(rows: list[Row]) -> list[Row]:
    program = Path("compiler").absolute()
    program.write_text(f"#!/bin/sh\ntouch {Path('canary').absolute()}\n")
    program.chmod(0o755)
    options = {"compiler": str(program)}
    return edit_first(
        rows, lambda started: started["spec"]["components"]["backend"].update(options=options)
    )


def another_seed(rows: list[Row]) -> list[Row]:
    code = {"seed_source": '__attribute__((constructor)) void run() { system("touch canary"); }'}
    return edit_first(rows, lambda started: started["problem"].update(code))


def forged_measurement(rows: list[Row]) -> list[Row]:
    """The best kernel is confirmed once more, at 99.7x."""
    confirmed = [row for row in rows if '"purpose":"confirmation"' in row["payload"]][-1]
    event = json.loads(confirmed["payload"])
    event["measurement"]["timing"] |= {"log2_speedup": 6.64, "low": 6.63, "high": 6.65}
    return [*rows, {**confirmed, "payload": json.dumps(event)}]


def swapped(rows: list[Row]) -> list[Row]:
    first, second = [n for n, row in enumerate(rows) if row["kind"] == "proposed"][:2]
    rows[first], rows[second] = rows[second], rows[first]
    return rows


def dropped(rows: list[Row]) -> list[Row]:
    lost = next(n for n, row in enumerate(rows) if row["kind"] == "lost")
    return rows[:lost] + rows[lost + 1 :]


def relabelled(rows: list[Row]) -> list[Row]:
    """Readers of measurements do not see this one."""
    measured = [row for row in rows if row["kind"] == "measured"][-1]
    measured["kind"] = "lost"
    return rows


def redated(rows: list[Row]) -> list[Row]:
    rows[3]["at"] += 1.0
    return rows


def unchanged(rows: list[Row]) -> list[Row]:
    return rows


EDITS = (
    another_oracle,
    another_compiler,
    another_seed,
    forged_measurement,
    swapped,
    dropped,
    relabelled,
    redated,
)


def check_shown_as_foreign(location: str, words: str) -> None:
    """No command takes the run for one of this user's, and none runs or passes on what it holds."""
    shown = invoke("show", "victim", "--store", location)
    assert shown.exit_code == 0, shown.output
    assert f"Run victim: {words}" in shown.stdout
    assert "--trust-store" in shown.stdout
    assert "kernelcast resume" not in shown.stdout
    listed = invoke("ls", "--store", location).stdout.splitlines()
    assert words in next(line for line in listed if "victim" in line)
    assert words not in next(line for line in listed if "other" in line)
    for kernel in ((), ("--kernel",)):
        shown = invoke("show", "victim", *kernel, "--store", location, "--json")
        assert json.loads(shown.stdout)["written_here"] is False
    assert words in invoke("show", "victim", "--kernel", "--store", location).stdout
    assert words in invoke("show", "victim", "--source", "--store", location).stderr
    facts = json.loads(invoke("ls", "--store", location, "--json").stdout)
    assert {row["run"]: row["written_here"] for row in facts} == {"victim": False, "other": True}
    for refused in (
        ("resume", "victim", "-n", "99"),
        ("data", "export", "victim", "--out", "rows.parquet"),
    ):
        result = invoke(*refused, "--store", location)
        assert result.exit_code == 1
        assert f"run 'victim' was {words}" in result.output
        assert "--trust-store" in result.output
    with Store.open(location) as store, pytest.raises(StoreError, match="--trust-store"):
        store.open_run("victim").append([next(store.open_run("other").events("voided"))])
    assert not Path("canary").exists()
    assert not Path("rows.parquet").exists()


@pytest.mark.parametrize("edit", EDITS)
def test_an_edited_run_is_not_taken_for_ones_own(
    victim: str, attacker: Attacker, edit: Callable[[list[Row]], list[Row]]
) -> None:
    attacker.write(edit(attacker.events("victim")))
    check_shown_as_foreign(victim, ELSEWHERE)


@pytest.mark.parametrize("edit", [unchanged, another_compiler, forged_measurement])
def test_the_signatures_of_another_key_do_not_count(
    victim: str, attacker: Attacker, edit: Callable[[list[Row]], list[Row]]
) -> None:
    attacker.write(edit(attacker.events("victim")))
    attacker.sign("victim")
    check_shown_as_foreign(victim, ELSEWHERE)


@pytest.mark.parametrize("edit", [unchanged, another_compiler, forged_measurement])
def test_a_run_without_signatures_is_an_earlier_one(
    victim: str, attacker: Attacker, edit: Callable[[list[Row]], list[Row]]
) -> None:
    attacker.write([{**row, "mac": None} for row in edit(attacker.events("victim"))])
    check_shown_as_foreign(victim, EARLIER)


def test_events_of_another_run_do_not_count(victim: str, attacker: Attacker) -> None:
    """They are the same but for the run that they were written to."""
    rows, others = (attacker.events(name) for name in ("victim", "other"))
    assert [row["payload"] for row in rows] == [row["payload"] for row in others]
    run_id = rows[0]["run_id"]
    attacker.write([{**row, "run_id": run_id} for row in rows[:-1] + others[-1:]])
    check_shown_as_foreign(victim, ELSEWHERE)


def test_a_run_does_not_count_under_another_name(victim: str, attacker: Attacker) -> None:
    for old, new in (("victim", "x"), ("other", "victim"), ("x", "other")):
        attacker.query("UPDATE runs SET name = :new WHERE name = :old", old=old, new=new)
    assert [opened(victim, name).origin for name in ("victim", "other")] == ["elsewhere"] * 2


def test_what_would_be_run_is_what_is_refused(victim: str, attacker: Attacker) -> None:
    """Without the refusal, the program that the forged option names is started."""
    attacker.write(another_compiler(attacker.events("victim")))
    assert not Path("canary").exists()
    invoke("resume", "victim", "--store", victim, "-n", "99", "--trust-store")
    assert Path("canary").exists()


def test_hostile_events_are_damage_and_no_fault_of_the_program(
    victim: str, attacker: Attacker
) -> None:
    rows = attacker.events("victim")
    for payload in ("", "{}", '{"kind":"voided","entry":"none"}', '{"kind":"reported"}'):
        attacker.write([*rows, {**rows[-1], "payload": payload}])
        result = invoke("show", "victim", "--store", victim)
        assert result.exit_code == 1
        assert f"damaged at event {len(rows)}" in result.output


def test_events_that_are_cut_off_at_the_end_are_not_missed(victim: str, attacker: Attacker) -> None:
    """What is left was all true at some time; docs/explanation/trust.md says so."""
    rows = attacker.events("victim")
    attacker.write(rows[:-3])
    run = opened(victim)
    assert run.is_own
    assert run.state.events == len(rows) - 3


# ------------------------------------------------------------------------ behind a snapshot


@pytest.fixture
def snapshots(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_module, "SNAPSHOT_EVERY", 5)


@pytest.mark.usefixtures("snapshots")
@pytest.mark.parametrize(
    "change",
    [
        "UPDATE events SET payload = replace(payload, '1', '2')",
        "UPDATE events SET kind = 'lost'",
        "UPDATE events SET at = at + 1",
        "UPDATE events SET mac = NULL",
        "DELETE FROM events",
    ],
)
def test_events_that_a_snapshot_covers_cannot_be_changed_unnoticed(
    victim: str, attacker: Attacker, change: str
) -> None:
    before = opened(victim).state
    seq = [row["seq"] for row in attacker.events("victim") if row["kind"] == "measured"][-1]
    of_run = "run_id = (SELECT id FROM runs WHERE name = 'victim')"
    attacker.query(f"{change} WHERE {of_run} AND seq = :seq", seq=seq)
    with Store.open(victim) as store:
        run = store.open_run("victim")
        assert run.is_own
        assert run.state == before, "the state is the signed one"
        with pytest.raises(StoreError, match="something else than kernelcast here"):
            list(run.events("measured"))
    result = invoke("show", "victim", "--store", victim, "--figure", "best.png")
    assert result.exit_code == 1
    assert "--trust-store" in result.output


@pytest.mark.usefixtures("snapshots")
@pytest.mark.parametrize("command", ["show victim", "ls"])
def test_what_a_snapshot_covers_is_signed_too(
    victim: str, attacker: Attacker, command: str
) -> None:
    """The run seems to be written here, and is not."""
    of_run = "run_id = (SELECT id FROM runs WHERE name = 'victim')"
    attacker.query(f"UPDATE events SET at = at + 1 WHERE {of_run} AND seq = 0")
    assert opened(victim).is_own
    result = invoke(*command.split(), "--store", victim, "--trust-store")
    assert result.exit_code == 0, result.output
    assert "Run victim was not written here. It is signed" in result.stderr
    with Store.open(victim) as store:
        run = store.open_run("victim")
        assert len(list(run.events())) == run.state.events
        assert run.is_own


@pytest.mark.parametrize("command", ["show victim", "ls"])
def test_a_run_that_was_written_here_is_not_signed_again(
    victim: str, attacker: Attacker, command: str
) -> None:
    before = attacker.query("SELECT * FROM events ORDER BY run_id, seq")
    result = invoke(*command.split(), "--store", victim, "--trust-store")
    assert result.exit_code == 0, result.output
    assert "signed" not in result.stderr
    assert attacker.query("SELECT * FROM events ORDER BY run_id, seq") == before


@pytest.mark.usefixtures("snapshots")
@pytest.mark.parametrize("signed", [True, False])
def test_a_forged_snapshot_is_not_read(victim: str, attacker: Attacker, signed: bool) -> None:
    before = opened(victim).state
    forged = before.model_copy(deep=True)
    assert forged.best is not None
    forged.archive[forged.best] = forged.incumbent.model_copy(update={"log2_speedup": 6.64})
    data = zstandard.compress(forged.model_dump_json().encode())
    (about,) = attacker.query("SELECT * FROM runs WHERE name = 'victim'")
    (old,) = attacker.query("SELECT * FROM snapshots WHERE run_id = :id", id=about["id"])
    mac = old["mac"]
    if signed:
        place = (f"victim@{about['created_at']}", old["seq"], old["crc"])
        mac = attacker.keyring.sign("snapshot", *place, data)
    attacker.query(
        "UPDATE snapshots SET state = :data, mac = :mac WHERE run_id = :id",
        data=data,
        mac=mac,
        id=about["id"],
    )
    assert opened(victim).state == before


# --------------------------------------------------------------------- kernels and the cache


def test_another_source_under_a_kernels_id_is_not_shown(victim: str, attacker: Attacker) -> None:
    best, seed = opened(victim).state.incumbent.kernel_id, example_history()[1][0].id
    attacker.query(
        "UPDATE kernels SET source_hash = (SELECT source_hash FROM kernels WHERE id = :seed) "
        "WHERE id = :best",
        seed=seed,
        best=best,
    )
    attacker.query("UPDATE kernels SET parameters = NULL WHERE id = :seed", seed=seed)
    result = invoke("show", "victim", "--source", "--store", victim)
    assert result.exit_code == 1
    assert f"kernel {best} was changed" in result.output
    assert result.stdout == ""
    attacker.query("UPDATE kernels SET signer = :other", other=attacker.keyring.signer)
    result = invoke("show", "victim", "--source", "--store", victim)
    assert "no kernel" in result.output
    assert result.stdout == ""


def test_a_cached_measurement_of_another_key_is_not_reused(victim: str, attacker: Attacker) -> None:
    own, key = searched(), CacheKey.of(searched())
    forged = own.model_dump_json().replace('"low":', '"low":9')
    assert forged != own.model_dump_json()
    with Store.open(victim) as store:
        assert store.cached_measurement(key) == own
        attacker.query(
            "UPDATE measurements SET payload = :forged WHERE kernel_id = :id",
            forged=forged,
            id=own.kernel_id,
        )
        with pytest.raises(StoreError, match=r"cached measurement.*--no-reuse"):
            store.cached_measurement(key)
        attacker.query(
            "UPDATE measurements SET signer = :signer, mac = :mac",
            signer=attacker.keyring.signer,
            mac=attacker.keyring.sign("measurement", *key, forged),
        )
        assert store.cached_measurement(key) is None
        store.create_run("third").append(*example_history())
        assert store.cached_measurement(key) == own, "each key has rows of its own"


# --------------------------------------------------------------------------- moving a store


def use_key(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Be a user whose state is in this folder, and return the file of the user's key."""
    monkeypatch.setenv("XDG_STATE_HOME", str(folder))
    Keyring.of_user()
    return folder / "kernelcast" / "store.key"


def test_a_store_from_elsewhere_is_continued_once_it_is_trusted(
    tmp_path: Path, location: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    use_key(tmp_path / "there", monkeypatch)
    history, kernels = example_history()
    with Store.open(location) as store:
        for name in ("first", "second"):
            store.create_run(name).append(history, kernels)
    use_key(tmp_path / "here", monkeypatch)
    assert opened(location, "first").origin == "elsewhere"
    result = invoke("show", "first", "--store", location, "--trust-store")
    assert result.exit_code == 0, result.output
    assert "Run first was not written here. It is signed with your key now" in result.stderr
    assert ELSEWHERE not in result.stdout
    assert opened(location, "second").origin == "elsewhere"
    assert invoke("ls", "--store", location, "--trust-store").exit_code == 0
    with Store.open(location) as store:
        for name in ("first", "second"):
            run = store.open_run(name)
            assert run.is_own
            assert list(run.events()) == history
            assert run.kernels([kernel.id for kernel in kernels]) == kernels
            run.append([Voided(entry="search-5")])
            assert store.open_run(name).is_own
    use_key(tmp_path / "there", monkeypatch)
    assert opened(location, "first").origin == "elsewhere"


def test_a_user_of_two_machines_copies_the_key(
    tmp_path: Path, location: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    there = use_key(tmp_path / "there", monkeypatch)
    with Store.open(location) as store:
        store.create_run("r").append(*example_history())
    here = use_key(tmp_path / "here", monkeypatch)
    assert not opened(location, "r").is_own
    here.write_text(here.read_text() + there.read_text())
    with Store.open(location) as store:
        run = store.open_run("r")
        assert run.is_own
        run.append([Voided(entry="search-5")])
        assert store.open_run("r").is_own
        assert store.cached_measurement(CacheKey.of(searched())) is not None
    use_key(tmp_path / "there", monkeypatch)
    assert opened(location, "r").origin == "elsewhere", "its last event has a key that is not here"


def test_two_keys_in_one_store_do_not_disturb_each_other(
    tmp_path: Path, location: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both write the same kernels and measurements."""
    history, kernels = example_history()
    for user in ("one", "two"):
        use_key(tmp_path / user, monkeypatch)
        with Store.open(location) as store:
            store.create_run(user).append(history, kernels)
    for user, other in (("one", "two"), ("two", "one")):
        use_key(tmp_path / user, monkeypatch)
        with Store.open(location) as store:
            own, foreign = store.open_run(user), store.open_run(other)
            assert (own.origin, foreign.origin) == ("here", "elsewhere")
            assert store.kernels([kernel.id for kernel in kernels]) == kernels
            assert foreign.kernels([kernel.id for kernel in kernels]) == kernels
            assert store.cached_measurement(CacheKey.of(searched())) is not None
