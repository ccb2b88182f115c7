"""Writes the prompts as they are now."""

from tests.forecasters.golden import FOLDER, prompts

for name, text in prompts().items():
    (FOLDER / name).write_text(text, encoding="utf-8")
