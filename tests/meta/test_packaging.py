"""What a wheel and an sdist contain, built offline from a copy of the sources."""

from __future__ import annotations

import ast
import os
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
BUILD_FILES = ("setup.py", "pyproject.toml", "README.md", "LICENSE", "mpisgd", "kernels")


def run(*command: str | Path, cwd: Path, **environment: str) -> str:
    done = subprocess.run(
        [str(part) for part in command],
        cwd=cwd,
        env={**os.environ, **environment},
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        check=False,
        timeout=100,
    )
    assert done.returncode == 0, done.stdout
    return done.stdout


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The files that a build needs, links as links."""
    folder = tmp_path_factory.mktemp("sources")
    for name in BUILD_FILES:
        if (ROOT / name).is_dir():
            ignored = shutil.ignore_patterns("__pycache__")
            shutil.copytree(ROOT / name, folder / name, symlinks=True, ignore=ignored)
        else:
            shutil.copy(ROOT / name, folder)
    return folder


@pytest.fixture(scope="module")
def wheel(sources: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    options = ["--no-deps", "--no-build-isolation", "--no-index", "--wheel-dir", folder]
    run(sys.executable, "-m", "pip", "wheel", *options, sources, cwd=folder)
    return next(folder.glob("mpisgd-*.whl"))


def module_files() -> set[str]:
    """Every source file of the package, the linked kernels included."""
    places = [*(ROOT / "mpisgd").rglob("*.py"), *(ROOT / "mpisgd" / "kernels").rglob("*.py")]
    return {str(path.relative_to(ROOT)) for path in places}


def test_the_kernels_are_a_link_in_the_repository():
    assert (ROOT / "mpisgd" / "kernels").is_symlink()
    assert os.readlink(ROOT / "mpisgd" / "kernels") == "../kernels"


def test_the_list_of_packages_is_complete():
    tree = ast.parse((ROOT / "setup.py").read_text())
    listed = next(
        ast.literal_eval(node.value)
        for node in tree.body
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "PACKAGES"
    )
    on_disk = {str(Path(file).parent).replace("/", ".") for file in module_files()}
    assert sorted(on_disk) == listed


def test_the_wheel_holds_every_file_and_nothing_else(wheel):
    names = set(zipfile.ZipFile(wheel).namelist())
    assert {name for name in names if name.endswith(".py")} == module_files()
    assert "mpisgd/py.typed" in names
    assert {name.split("/")[0].partition("-")[0] for name in names} == {"mpisgd"}


def test_the_sdist_holds_the_kernels_as_files(sources, tmp_path):
    code = "import sys; from setuptools import build_meta; build_meta.build_sdist(sys.argv[1])"
    run(sys.executable, "-c", code, tmp_path, cwd=sources)
    with tarfile.open(next(tmp_path.glob("mpisgd-*.tar.gz"))) as archive:
        files = {m.name.partition("/")[2] for m in archive.getmembers() if m.isfile()}
    assert module_files() <= files
    assert {"setup.py", "pyproject.toml", "README.md", "LICENSE"} <= files


def test_the_installed_wheel_works_from_elsewhere(wheel, tmp_path):
    target = tmp_path / "site"
    options = ["--no-deps", "--no-index", "--quiet", "--target", target]
    run(sys.executable, "-m", "pip", "install", *options, wheel, cwd=tmp_path)
    code = (
        "import mpisgd, mpisgd.kernels.onebit as k, pathlib, sys\n"
        "target = pathlib.Path(sys.argv[1])\n"
        "assert pathlib.Path(mpisgd.__file__).is_relative_to(target), mpisgd.__file__\n"
        "assert pathlib.Path(k.__file__).is_relative_to(target), k.__file__\n"
        "assert not (target / 'kernels').exists()\n"
        "print(mpisgd.__version__)"
    )
    printed = run(sys.executable, "-c", code, target, cwd=tmp_path, PYTHONPATH=str(target))
    assert printed.strip() == wheel.name.split("-")[1]
    help_text = run(
        sys.executable, "-m", "mpisgd.train", "--help", cwd=tmp_path, PYTHONPATH=str(target)
    )
    assert "--warmup" in help_text


@pytest.mark.parametrize("folder", ["root", "elsewhere"])
def test_the_installation_under_test_is_this_repository(folder, tmp_path):
    code = "import mpisgd, mpisgd.kernels; print(mpisgd.__file__); print(mpisgd.kernels.__file__)"
    cwd = ROOT if folder == "root" else tmp_path
    printed = run(sys.executable, "-c", code, cwd=cwd).split()
    places = [Path(line).resolve() for line in printed]
    assert places == [ROOT / "mpisgd" / "__init__.py", ROOT / "kernels" / "__init__.py"]
