"""Replies kept in a file of JSON lines, by the hash of what was asked: tests without a server.

Only what a model said is kept, never a fault, so that no outage becomes a lasting answer; and no
address, header or key.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from kernelcast.errors import SetupError
from kernelcast.llm._keys import REDACTOR
from kernelcast.llm._replies import SAID, Reply
from kernelcast.types import content_hash


class Cassette:
    """The kept replies of one file; a line torn by a crash is as if it had never been written."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._replies: dict[str, Reply] = {}
        data = path.read_bytes() if path.exists() else b""
        self._sound_bytes: int | None = data.rfind(b"\n") + 1
        for number, line in enumerate(data[: self._sound_bytes].splitlines(), start=1):
            try:
                kept = json.loads(line)
                self._replies[kept["key"]] = Reply.model_validate(kept["reply"])
            except (ValueError, LookupError, TypeError, ValidationError):
                raise SetupError(
                    f"{path}:{number} is no recorded reply: delete the line, or record anew"
                ) from None

    def find(self, asked: dict[str, Any]) -> Reply | None:
        """The reply to exactly this, if there is one."""
        return self._replies.get(_key(asked))

    def keep(self, asked: dict[str, Any], reply: Reply) -> None:
        """Write down what the model said; a fault is not kept."""
        if not all(sample.outcome in SAID for sample in reply.samples):
            return
        key = _key(asked)
        self._replies[key] = reply
        line = REDACTOR.text(json.dumps({"key": key, "asked": asked, "reply": reply.model_dump()}))
        self._path.parent.mkdir(parents=True, exist_ok=True)
        if self._sound_bytes is not None and self._path.exists():
            os.truncate(self._path, self._sound_bytes)
        self._sound_bytes = None
        with self._path.open("a", encoding="utf-8") as file:
            file.write(f"{line}\n")


def _key(asked: dict[str, Any]) -> str:
    return content_hash(json.dumps(asked, sort_keys=True))
