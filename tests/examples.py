"""The packages in examples/, installed without pip."""

from __future__ import annotations

import shutil
import tomllib
from pathlib import Path

EXAMPLES = Path(__file__).parents[1] / "examples"


def install_example(name: str, target: Path) -> None:
    """Leave a package in a folder as `pip install --target` does, by its own pyproject.toml."""
    folder = EXAMPLES / name
    pyproject = tomllib.loads((folder / "pyproject.toml").read_text())
    for module in pyproject["tool"]["hatch"]["build"]["targets"]["wheel"]["only-include"]:
        shutil.copy(folder / module, target)
    project = pyproject["project"]
    metadata = target / f"{project['name'].replace('-', '_')}-{project['version']}.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text(
        f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: {project['version']}\n"
    )
    points = project["entry-points"]["kernelcast"]
    (metadata / "entry_points.txt").write_text(
        "[kernelcast]\n" + "".join(f"{name} = {value}\n" for name, value in points.items())
    )
