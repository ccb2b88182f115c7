"""The page of prompts is what the forecaster sends."""

from __future__ import annotations

import prompts_page


def test_the_page_is_what_is_sent() -> None:
    assert prompts_page.page() == prompts_page.PAGE.read_text(encoding="utf-8"), (
        "run: python tools/prompts_page.py"
    )


def test_no_word_of_an_author_is_on_it() -> None:
    users = prompts_page.page().partition("## A bundled C++ problem")[2]
    for word in ("One program a row", "Softmax over rows", "softmax_rows", "partial", "scale_ptr"):
        assert word not in users
