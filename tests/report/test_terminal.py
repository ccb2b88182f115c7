"""Foreign text on the terminal: shown, never obeyed."""

from __future__ import annotations

import io
import json
import os
import pty
import re
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Group
from rich.live import Live
from rich.padding import Padding
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

from kernelcast.bins import DEFAULT_BINS
from kernelcast.cli import main
from kernelcast.errors import ProblemError
from kernelcast.problems import load_problem
from kernelcast.report.terminal import Terminal, printable
from kernelcast.store import DEFAULT_STORE, Store
from tests.forecasters.test_llm import points
from tests.model_server import Reply, ScriptedServer

STYLING = re.compile(r"\x1b\[[0-9;]*m")
ACTING = "".join(map(chr, [*range(10), *range(11, 32), *range(127, 160)])) + (
    "\u200b\u200d\u200e\u202a\u202e\u2028\u2066\u2069\ufeff\U000e0001\ud800\udcff"
)
HOSTILE = "a\x1b[2J\x1b[Hbest speedup 99x\r\x9b31m\u202e[/nope][red]:smile:"
SHOWN = r"a\x1b[2J\x1b[Hbest speedup 99x\r\x9b31m\u202e[/nope][red]:smile:"
foreign = st.text(st.one_of(st.characters(), st.sampled_from(ACTING), st.sampled_from("[]/:ab m")))


def acting(output: str) -> set[str]:
    """The characters of an output that a terminal would act on, but for styles and newlines."""
    return set(STYLING.sub("", output)) & set(ACTING)


class Raw:
    """A renderable that brings its text past every conversion."""

    def __init__(self, text: str) -> None:
        self.text = text

    def __rich_console__(self, *_: object) -> list[Segment]:
        return [Segment(self.text)]


@settings(deadline=None, max_examples=50)
@given(foreign)
def test_no_output_contains_a_character_that_acts(text: str) -> None:
    for width in (20, 80, 120):
        for is_terminal in (False, True):
            file = io.StringIO()
            console = Terminal(file=file, width=width, force_terminal=is_terminal)
            table = Table("header", text, title=text, caption=text)
            table.add_row(text, Text(text, style="bold"))
            inner = Table.grid()
            inner.add_row(Text(text), text)
            console.print(text, Text(text), text, style="red")
            console.print(text, markup=True, highlight=True, emoji=True)
            console.print(table, Group(text, Padding(Text(text), 1), inner), [text], {text: 1})
            console.print(Raw(text))
            console.out(text)
            console.rule(text)
            assert not acting(file.getvalue())


@settings(deadline=None, max_examples=50)
@given(foreign)
def test_the_live_view_and_the_spinner_move_the_cursor_but_show_no_escape(text: str) -> None:
    file = io.StringIO()
    console = Terminal(file=file, width=80, force_terminal=True)
    with console.status(text), Live(Text(""), console=console, auto_refresh=False) as live:
        live.update(Group(text, Text(text)), refresh=True)
    cursor = r"\x1b\[\?25[lh]|\x1b\[[0-9]*[AK]|\r"
    assert not acting(re.sub(cursor, "", file.getvalue()))


def test_the_live_view_holds_no_character_but_rich_s_own_when_text_is_a_cursor_movement() -> None:
    """What the test above removes must not have come from the text."""
    file = io.StringIO()
    console = Terminal(file=file, width=80, force_terminal=True)
    with Live("", console=console, auto_refresh=False) as live:
        live.update("\x1b[1A\x1b[2K\x1b[?25l\r", refresh=True)
    assert r"\x1b[1A\x1b[2K\x1b[?25l\r" in file.getvalue()


@settings(deadline=None, max_examples=50)
@given(foreign)
def test_printable_leaves_nothing_that_acts(text: str) -> None:
    assert not acting(printable(text).replace("\t", ""))


@settings(deadline=None, max_examples=50)
@given(st.text(st.characters(exclude_categories=("Cc", "Cf", "Cs", "Zl", "Zp"))))
def test_printable_keeps_what_can_be_read(text: str) -> None:
    assert printable(f"{text}\n\t日本 é 🙂\n") == f"{text}\n\t日本 é 🙂\n"


def test_printable_shows_what_it_replaced() -> None:
    assert printable("\x1b\x9b\u202e\U000e0001\ud800\r") == r"\x1b\x9b\u202e\U000e0001\ud800\r"


def test_text_is_not_markup_and_its_style_follows_its_characters() -> None:
    file = io.StringIO()
    console = Terminal(file=file, width=120, force_terminal=True, color_system="standard")
    console.print("[/nope] [red]x[/red] :smile: 12.5 'quoted'")
    assert file.getvalue() == "[/nope] [red]x[/red] :smile: 12.5 'quoted'\n"
    file.truncate(file.seek(0))
    text = Text("\x1bab\x1b")
    text.stylize("bold", 2, 4)
    console.print(text)
    assert file.getvalue() == "\\x1ba\x1b[1mb\\x1b\x1b[0m\n"


def test_a_table_gives_an_escape_the_room_it_takes() -> None:
    file = io.StringIO()
    table = Table(box=None, pad_edge=False, show_header=False)
    table.add_row(Text("\x1b" * 5), "\ta\tb", "next")
    Terminal(file=file, width=80).print(table)
    assert file.getvalue().split() == [r"\x1b" * 5, "a", "b", "next"]


# ------------------------------------------------------------------------- the commands on a pty


def on_a_terminal(*arguments: str, folder: Path) -> tuple[str, int]:
    """What a command writes when all its streams are a terminal, and its exit code."""
    ours, its = pty.openpty()
    command = [sys.executable, "-c", "from kernelcast.cli import main; main()", *arguments]
    environment = {**os.environ, "COLUMNS": "200", "TERM": "xterm-256color"}
    with subprocess.Popen(
        command, stdin=its, stdout=its, stderr=its, cwd=folder, env=environment
    ) as process:
        os.close(its)
        parts = []
        while True:
            try:
                parts.append(os.read(ours, 65536))
            except OSError:  # Linux: the other end is closed
                break
            if not parts[-1]:
                break
    os.close(ours)
    # The terminal's driver writes \r\n for \n.
    return b"".join(parts).decode().replace("\r\n", "\n"), process.returncode


def unwrapped(output: str) -> str:
    return re.sub(r"\s+", "", STYLING.sub("", output))


CLEARS = ("\x1b[2J", "\x1b[H", "\x1b[31m\x1b", "\x9b", "\u202e")
"""What `HOSTILE` would do, none of which rich writes by itself."""


def test_forecast_shows_a_hostile_compiler_message(tmp_path: Path) -> None:
    kernel = 'extern "C" void kernel() {}\n'
    (tmp_path / "a.cpp").write_text(kernel)
    (tmp_path / "b.cpp").write_text(f"#error {HOSTILE}\n{kernel}")
    asked = ("forecast", "a.cpp", "b.cpp", "--problem", "softmax")
    output, code = on_a_terminal(*asked, folder=tmp_path)
    assert code == 0, output
    assert r"\x1b[2J\x1b[Hbestspeedup99x" in unwrapped(output)
    assert not [part for part in CLEARS if part in output]


def test_forecast_shows_a_hostile_rationale_and_file_name(tmp_path: Path) -> None:
    names = ("a.cu", "b\x1b[2J[nope].cu")
    for name in names:
        (tmp_path / name).write_text(
            f"__global__ void kernel(float* x) {{ *x += {ord(name[0])}; }}\n"
        )
    told = points(DEFAULT_BINS, [0.0] * 4, [1.0] * DEFAULT_BINS.count) | {"rationale": HOSTILE}
    with ScriptedServer(Reply(json.dumps(told))) as server:
        asked = ("forecast", *names, "--device", "H100", "--base-url", server.base_url)
        output, code = on_a_terminal(*asked, "--model", HOSTILE, folder=tmp_path)
    assert code == 0, output
    assert unwrapped(f"Forecast by {SHOWN}") in unwrapped(output)
    assert unwrapped(f"its reason: {SHOWN}") in unwrapped(output)
    assert r"b\x1b[2J[nope].cu against a.cu" in output
    assert not [part for part in CLEARS if part in output]


@pytest.mark.measures
def test_search_show_and_ls_show_hostile_names(tmp_path: Path) -> None:
    """A real search of a folder that someone else wrote."""
    main(["init", str(tmp_path / "mine")], standalone_mode=False)
    stated = (tmp_path / "mine" / "problem.toml").read_text()
    escaped = (
        HOSTILE.encode("unicode_escape").decode().replace(r"\x", r"\u00").replace(r"\r", r"\u000d")
    )
    hostile = stated.replace('name = "mine"', f'name = "{escaped}"')
    (tmp_path / "mine" / "problem.toml").write_text(hostile)
    output, code = on_a_terminal("search", "mine", "-n", "1", "--pool", "1", folder=tmp_path)
    assert code == 0, output
    assert unwrapped(f"Run {SHOWN}-") in unwrapped(output)
    assert not [part for part in CLEARS if part in output]
    where = ("--store", str(tmp_path / DEFAULT_STORE))
    with Store.open(where[1]) as store:
        (info,) = store.runs()
    for *command, code in (("show", info.name, 0), ("ls", 0), ("show", f"no {HOSTILE}", 1)):
        told = CliRunner().invoke(main, [*command, *where], env={"COLUMNS": "200"})
        assert told.exit_code == code, told.output
        assert unwrapped(SHOWN) in unwrapped(told.output)
        assert not acting(told.output)
    hostile = stated.replace('name = "mine"', 'name = "mine\\nbest speedup 99x"')
    (tmp_path / "mine" / "problem.toml").write_text(hostile)
    with pytest.raises(ProblemError, match="name must be one line"):
        load_problem(tmp_path / "mine")


@pytest.mark.parametrize("is_terminal", [False, True])
def test_a_source_is_exact_in_a_file_and_printable_on_a_terminal(
    tmp_path: Path, is_terminal: bool
) -> None:
    code = "from kernelcast.report.terminal import echo_source; echo_source('é\\x1b[2J\\r\\n\\tx')"
    if is_terminal:
        ours, its = pty.openpty()
        subprocess.run([sys.executable, "-c", code], stdout=its, check=True)
        assert os.read(ours, 100).decode() == "é\\x1b[2J\\r\r\n\tx"
        os.close(ours)
        os.close(its)
    else:
        told = subprocess.run([sys.executable, "-c", code], stdout=subprocess.PIPE, check=True)
        assert told.stdout.decode() == "é\x1b[2J\r\n\tx"
