"""The public surface, and what a plain install brings."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import kernelcast

ROOT = Path(__file__).parents[1]
HEAVY = {"torch", "ray", "openai", "pyarrow"}
IMPORT_EVERYTHING = """
import importlib, json, pkgutil, sys
import kernelcast
for name in kernelcast.__all__:
    getattr(kernelcast, name)
modules = [m.name for m in pkgutil.walk_packages(kernelcast.__path__, "kernelcast.")
           if ".migrations" not in m.name and ".bundled" not in m.name and ".scaffold" not in m.name
           and not m.name.endswith("._worker")]
for name in modules:
    importlib.import_module(name)
print(json.dumps({"modules": modules, "loaded": sorted(sys.modules)}))
"""


def test_public_names_are_sorted_and_there() -> None:
    assert list(kernelcast.__all__) == sorted(
        kernelcast.__all__, key=lambda name: (not name.isupper(), not name[0].isupper(), name)
    )
    for name in kernelcast.__all__:
        assert getattr(kernelcast, name) is not None


def test_importing_the_package_imports_a_module_when_a_name_of_it_is_used() -> None:
    code = (
        "import sys, kernelcast\n"
        "assert 'Search' in dir(kernelcast) and not hasattr(kernelcast, 'nothing')\n"
        "assert 'numpy' not in sys.modules and 'kernelcast.bins' not in sys.modules\n"
        "assert kernelcast.Bins.__module__ == 'kernelcast.bins'\n"
        "assert 'kernelcast.search' not in sys.modules\n"
        "from kernelcast import *\n"
        "assert Search.__module__ == 'kernelcast.search'\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_importing_everything_loads_nothing_heavy() -> None:
    output = subprocess.run(
        [sys.executable, "-c", IMPORT_EVERYTHING], capture_output=True, text=True, check=True
    ).stdout
    report = json.loads(output)
    assert "kernelcast.search" in report["modules"]
    assert not HEAVY & set(report["loaded"])
