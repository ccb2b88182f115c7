"""Answers in a file of JSON lines, by what was asked, so that nothing is paid for twice."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, Generic, TypeVar

from pydantic import BaseModel, ValidationError

from kernelcast.errors import SetupError

AnswerT = TypeVar("AnswerT", bound=BaseModel)


class Tape(Generic[AnswerT]):
    """Answers of one type by key, in memory and in a file if one is named.

    Loading ignores a last line that a crash cut off; the next `keep` removes it. `field` names the
    answer in each line. `redact` is applied to each line before it is written.
    """

    def __init__(
        self,
        answer: type[AnswerT],
        path: Path | None = None,
        *,
        field: str = "answer",
        redact: Callable[[str], str] = str,
    ) -> None:
        self._path, self._field, self._redact = path, field, redact
        self._answers: dict[str, AnswerT] = {}
        self._lock = threading.Lock()
        self._mended = False
        data = path.read_bytes() if path is not None and path.exists() else b""
        for number, line in enumerate(data[: data.rfind(b"\n") + 1].splitlines(), start=1):
            try:
                entry = json.loads(line)
                self._answers[entry["key"]] = answer.model_validate(entry[field])
            except (ValueError, LookupError, TypeError, ValidationError):
                raise SetupError(
                    f"{path}:{number} is no recorded {field}: delete the line, or record anew"
                ) from None

    def __len__(self) -> int:
        return len(self._answers)

    def find(self, key: str) -> AnswerT | None:
        """Return the answer under this key, if there is one."""
        return self._answers.get(key)

    def keep(self, key: str, answer: AnswerT, **context: Any) -> None:
        """Add an answer; `context` is written beside it for readers and never read back."""
        entry = {"key": key, **context, self._field: answer.model_dump(mode="json")}
        line = self._redact(json.dumps(entry))
        with self._lock:
            self._answers[key] = answer
            if self._path is None:
                return
            self._path.parent.mkdir(parents=True, exist_ok=True)
            with self._path.open("a+b") as file:
                if not self._mended:
                    file.seek(0)
                    file.truncate(file.read().rfind(b"\n") + 1)
                    self._mended = True
                file.write(f"{line}\n".encode())
