"""A tape keeps answers over crashes, and beside another writer of the same file."""

from __future__ import annotations

from pathlib import Path

import pytest

from kernelcast.errors import SetupError
from kernelcast.tape import Tape
from kernelcast.types import Usage


def test_writers_of_one_file_keep_each_others_answers(tmp_path: Path) -> None:
    path = tmp_path / "folder" / "tape.jsonl"
    first, second = Tape(Usage, path), Tape(Usage, path)
    first.keep("a", Usage(usd=1.0))
    second.keep("b", Usage(usd=2.0), asked="what")
    first.keep("c", Usage(usd=3.0))
    again = Tape(Usage, path)
    assert [again.find(key) for key in "abc"] == [Usage(usd=usd) for usd in (1.0, 2.0, 3.0)]
    assert again.find("d") is None


@pytest.mark.parametrize("cut", [1, 10, 60])
def test_a_torn_line_is_forgotten_wherever_it_was_torn(tmp_path: Path, cut: int) -> None:
    path = tmp_path / "tape.jsonl"
    tape = Tape(Usage, path, field="reply")
    for key in "ab":
        tape.keep(key, Usage(usd=1.0))
    path.write_bytes(path.read_bytes()[:-cut])
    again = Tape(Usage, path, field="reply")
    assert len(again) == 1
    again.keep("c", Usage(usd=2.0))
    assert [Tape(Usage, path, field="reply").find(key) is None for key in "abc"] == [0, 1, 0]


def test_a_line_of_another_kind_is_named(tmp_path: Path) -> None:
    path = tmp_path / "tape.jsonl"
    Tape(Usage, path).keep("a", Usage())
    with pytest.raises(SetupError, match=r"tape\.jsonl:1 is no recorded reply: delete the line"):
        Tape(Usage, path, field="reply")


def test_what_is_written_is_redacted(tmp_path: Path) -> None:
    path = tmp_path / "tape.jsonl"
    tape = Tape(Usage, path, redact=lambda line: line.replace("secret", "***"))
    tape.keep("a", Usage(), asked="a secret")
    assert "***" in path.read_text()
    assert "secret" not in path.read_text()
