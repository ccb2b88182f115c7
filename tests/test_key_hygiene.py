"""No form of a key in any file, log, store or report, whatever the server does with it.

A child process runs a search on an endpoint that gives the key back in bodies, headers, reason
phrases and answers, in every form; logs everything; prints tracebacks with local variables. Then
whatever it wrote is scanned. Run as a script, this file is that child.
"""

from __future__ import annotations

import contextlib
import logging
import os
import sqlite3
import subprocess
import sys
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import zstandard

from _bad_server import BadServer, echoes
from kernelcast.cli import main
from kernelcast.errors import ModelError
from kernelcast.farm.local import LocalFarm
from kernelcast.forecasters.llm import LlmForecaster
from kernelcast.llm import _pace
from kernelcast.llm._keys import Redactor
from kernelcast.parts import Parts
from kernelcast.policies import MeasureAll
from kernelcast.proposers.llm import LlmProposer
from kernelcast.search import Search
from kernelcast.store import Store
from kernelcast.strategies import Greedy
from kernelcast.testing import (
    SyntheticBackend,
    make_query,
    synthetic_kernels,
    synthetic_problem,
)
from kernelcast.types import Budget

ROOT = Path(__file__).parents[1]
CANARY = "sk-canary/7fQ9+xZ2==&mW4kT8vB1nR6"
WINDOW = 10  # so many characters of a key in a row are a leak too


def leak_if_you_can(folder: Path, echoing_url: str, refusing_url: str, *, reporting: bool) -> None:
    """The child: everything that a careless user might do, next to a server that echoes."""
    logging.basicConfig(level=logging.DEBUG, filename=folder / "log.txt")
    setattr(_pace, "FIRST_BACKOFF_S", 0.01)  # noqa: B010 - mypy guards constants
    endpoint: dict[str, Any] = {
        "base_url": echoing_url,
        "model": "m",
        "max_output_tokens": 400,
        "cassette": str(folder / "tape.jsonl"),
        "cassette_mode": "record",
    }
    store, source = folder / "store.db", folder / "kernel.cpp"
    source.write_text(synthetic_problem().seed_source)
    with Store.open(store) as opened:
        Search(
            synthetic_problem(),
            Parts(
                proposer=LlmProposer(concurrency=2, **endpoint),
                forecaster=LlmForecaster(concurrency=2, **endpoint),
                policy=MeasureAll(),
                strategy=Greedy(),
                farm=LocalFarm(SyntheticBackend()),
            ),
            opened,
            name="r",
        ).run(Budget(candidates=8))
    commands = (
        f"show r --store {store} --figure {folder}/best.png",
        f"show r --store {store} --json",
        f"show r --store {store} --kernel",
        f"data export r --store {store} --out {folder}/rows.parquet",
        f"forecast {source} {source} --base-url {echoing_url} --model m",
        f"forecast {source} {source} --base-url {refusing_url} --model m",
    )
    for command in commands if reporting else ():
        with contextlib.suppress(SystemExit):
            main(command.split())
    refused = endpoint | {"base_url": refusing_url, "cassette": ""}
    try:
        LlmForecaster(**refused).forecast([make_query(synthetic_kernels(1)[0])])
    except ModelError as error:
        logging.exception("refused")
        traceback.TracebackException.from_exception(error, capture_locals=True).print()
    else:
        raise AssertionError("a 401 is an error")


def run_child(folder: Path, *, redacting: bool) -> None:
    played = ("answer that echoes the key", "500 that echoes the key", "")
    source = synthetic_problem().seed_source
    with (
        BadServer(
            lambda n: played[n % 3], lambda n: source.replace("2.0f", f"2.0f + {n}.0f")
        ) as echoing,
        BadServer(lambda _: "401 that echoes the key") as refusing,
        (folder / "stdout.txt").open("w") as out,
        (folder / "stderr.txt").open("w") as err,
    ):
        urls = [echoing.base_url, refusing.base_url]
        done = subprocess.run(
            [sys.executable, __file__, str(folder), *urls, "redacting" if redacting else "leaky"],
            env=os.environ
            | {
                "KERNELCAST_API_KEY": CANARY,
                "OPENAI_LOG": "debug",
                "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "bench"), *sys.path]),
            },
            cwd=folder,
            stdout=out,
            stderr=err,
            check=False,
            timeout=900,
        )
    assert done.returncode == 0, (folder / "stderr.txt").read_text()[-3000:]
    assert echoing.keys_seen == refusing.keys_seen == {f"Bearer {CANARY}"}
    assert {entry.fault for entry in echoing.books} == set(played)


def written(folder: Path) -> Iterator[tuple[str, bytes]]:
    """Everything the child left behind; what is packed in the store is unpacked."""
    for path in folder.rglob("*"):
        if path.is_file():
            yield path.name, path.read_bytes()
    unpack = zstandard.ZstdDecompressor()
    with contextlib.closing(sqlite3.connect(folder / "store.db")) as store:
        for (data,) in store.execute("SELECT data FROM blobs"):
            yield "store.db", unpack.decompress(data)


def leaks(folder: Path) -> dict[str, set[str]]:
    """The forms of the key in each file."""
    forms = {name: form.rstrip("=") for name, form in echoes(f"Bearer {CANARY}").items()}
    forms["base64 of the header"] = forms["base64 of the header"][10:]  # past "Bearer "
    for start in range(len(CANARY) - WINDOW):
        part = CANARY[start : start + WINDOW]
        forms |= {f"part {start}": part, f"reversed part {start}": part[::-1]}
    found: dict[str, set[str]] = {}
    for name, data in written(folder):
        hits = {form for form, text in forms.items() if text.encode() in data}
        if hits:
            found.setdefault(name, set()).update(hits)
    return found


@pytest.mark.slow
def test_no_form_of_a_key_is_written_anywhere(tmp_path: Path) -> None:
    run_child(tmp_path, redacting=True)
    names = {name for name, _ in written(tmp_path)}
    assert {"store.db", "log.txt", "tape.jsonl", "best.png", "rows.parquet"} <= names
    log = (tmp_path / "log.txt").read_text()
    assert "httpcore" in log
    assert "HTTP Request: POST" in log
    assert "***" in log
    told = (tmp_path / "stderr.txt").read_text()
    assert "Traceback" in told
    assert "reason = " in told
    assert "KERNELCAST_API_KEY" in told
    assert leaks(tmp_path) == {}


@pytest.mark.slow
def test_the_scan_would_find_them(tmp_path: Path) -> None:
    """The same run with nothing struck out: the key is all over the place."""
    run_child(tmp_path, redacting=False)
    found = leaks(tmp_path)
    assert {"store.db", "log.txt", "tape.jsonl", "stderr.txt"} <= set(found)
    assert set().union(*found.values()) >= set(echoes(f"Bearer {CANARY}"))


@pytest.mark.parametrize("place", ["api_key", "api_key_env", "base_url"])
def test_a_search_file_with_a_key_in_it_is_refused_before_anything_is_stored(
    place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    options = {"base_url": "http://127.0.0.1:1/v1", "model": "m"}
    options[place] = f"http://x:{CANARY}@host/v1" if place == "base_url" else CANARY
    lines = [f'{name} = "{value}"' for name, value in options.items()]
    Path("search.toml").write_text(
        "\n".join(['problem = "softmax"', "[forecaster]", *lines, 'name = "llm"'])
    )
    with pytest.raises(Exception, match="model endpoint") as caught:
        Search.from_toml("search.toml")
    assert "canary" not in "".join(traceback.format_exception(caught.value))
    assert [path.name for path in tmp_path.iterdir()] == ["search.toml"]


if __name__ == "__main__":
    redacting = sys.argv[4] == "redacting"
    if not redacting:
        setattr(Redactor, "text", lambda _, text: text)  # noqa: B010
        setattr(Redactor, "data", lambda _, data: data)  # noqa: B010
    leak_if_you_can(Path(sys.argv[1]), *sys.argv[2:4], reporting=redacting)
