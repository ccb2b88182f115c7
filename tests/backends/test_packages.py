"""What confined Python may import, and what it may not read for that."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

from kernelcast.backends._packages import Packages, require_readable_by_all
from kernelcast.backends._proof import detect_sandbox
from kernelcast.backends._sandbox import Sandbox
from kernelcast.errors import SetupError

from .test_oracle import HONEST, X, asked, body


def test_an_edited_package_is_found_where_it_is_and_nothing_around_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "repository" / "edited_package"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("from .inner import FACTOR\n")
    (package / "inner.py").write_text("FACTOR = 5\n")
    (package.parent / "secret.env").write_text("KEY=1\n")
    monkeypatch.syspath_prepend(str(package.parent))
    source = body(
        f"""
        try:
            open({str(package.parent / "secret.env")!r})
        except OSError:
            return edited_package.FACTOR * x
        """,
        "import edited_package",
    )
    assert package in Packages.of(source).readable
    assert package not in Packages.of(HONEST).readable
    assert np.array_equal(asked(source, detect_sandbox())[0], 5 * X)


@pytest.mark.parametrize("place", ["home", "here", "repository", "file"])
def test_a_package_is_not_readable_where_it_holds_more_than_code(
    place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "around_package"
    (package / ".git" if place == "repository" else package / "inner").mkdir(parents=True)
    (package / "__init__.py").touch()
    if place == "home":
        monkeypatch.setenv("HOME", str(package / "inner"))
    if place == "here":
        monkeypatch.chdir(package)
    if place == "file":
        (tmp_path / "single_module.py").touch()
    monkeypatch.syspath_prepend(str(tmp_path))
    name = "single_module" if place == "file" else "around_package"
    readable = list(Packages.of(f"import {name}\n").readable)
    assert not any(path.is_relative_to(tmp_path) for path in readable)
    assert not any(Path.home().is_relative_to(path) for path in readable)


def test_many_imports_and_strange_names_cost_little() -> None:
    source = "".join(f"import no_module_{number}\n" for number in range(100_000))
    assert Packages.of("import __main__\nfrom . import x\n" + source).installed


def test_folders_that_the_sandboxs_user_may_not_read_are_a_setup_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    packages = tmp_path / "closed" / "site-packages"
    packages.mkdir(parents=True)
    packages.parent.chmod(0o700)
    monkeypatch.setattr(sys, "path", [*sys.path, str(packages)])
    with pytest.raises(SetupError, match="may not read"):
        asked(HONEST, Sandbox(frozenset({"uid"})))


def test_what_is_installed_here_is_shown_and_found(tmp_path: Path) -> None:
    packages = Packages.of("import numpy\n")
    assert packages.edited == {}
    assert Path(np.__file__).parents[1] in packages.readable
    assert all(
        Path(folder).name in ("site-packages", "dist-packages") for folder in packages.installed
    )


def test_names_are_read_from_the_text_and_nothing_is_imported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("first_package", "second_package", "third_package"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text("raise SystemExit\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    source = (
        "import first_package.inner\n    from second_package import x\n# import third_package\n"
    )
    packages = Packages.of(source)
    assert packages.edited == {
        name: str(tmp_path / name) for name in ("first_package", "second_package")
    }
    assert {tmp_path / "first_package", tmp_path / "second_package"} < set(packages.readable)
    assert tmp_path not in packages.readable


def test_a_folder_above_that_not_everyone_may_enter_is_named(tmp_path: Path) -> None:
    inner = tmp_path / "closed" / "inner"
    inner.mkdir(parents=True)
    for folder in (tmp_path, *tmp_path.parents[:-2]):
        folder.chmod(0o755)
    require_readable_by_all([inner])
    inner.parent.chmod(0o750)
    with pytest.raises(SetupError, match=r"another user, which may not read .*closed/inner"):
        require_readable_by_all([tmp_path, inner])
