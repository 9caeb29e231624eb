"""The architecture as a test: who may import whom, what stays where, how long things may get."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "mpisgd"

# From the bottom up. A module or folder of mpisgd may import what stands on a lower line, never
# its own line or a higher one. A new one is entered here: that is where its place is decided.
LAYERS = [
    {"devices", "launch", "obituary", "registry", "timing", "waiting"},
    {"banner", "lines", "progress", "ranges", "refusals", "schedule"},
    {"control", "kernels", "leaving", "phase_table"},
    {"agreement", "failures"},
    {"buckets", "data", "models", "placement", "start"},
    {"quant", "tasks", "world"},
    {"collectives", "parameters"},
    {"exchange"},
    {"sync"},
    {"meter"},
    {"trainer"},
    {"config"},
    {"job"},
    {"train"},
]

# Package -> who may import it. Imports for type checkers alone do not count.
BORDERS = {
    "mpi4py": {"collectives", "start"},
    "numba": {"kernels"},
    "llvmlite": {"kernels"},
    "argparse": {"config", "train"},
    "rich": {"progress"},
}
# Torch stays out of these, so that they work on arrays alone and start quickly.
NO_TORCH = {"agreement", "config", "kernels", "quant", "registry", "timing", "waiting"}

FILE_LINES = 400
FUNCTION_LINES = 100
PICKLING = {"send", "recv", "isend", "irecv", "sendrecv", "bcast", "gather", "allgather"}
PICKLING |= {"scatter", "alltoall", "reduce", "allreduce", "scan", "exscan"}


@cache
def sources() -> dict[str, ast.Module]:
    """Module name within mpisgd ("collectives.base", "" for the package itself) -> its syntax."""
    found = {}
    for path in [*PACKAGE.rglob("*.py"), *(PACKAGE / "kernels").rglob("*.py")]:
        parts = path.relative_to(PACKAGE).with_suffix("").parts
        name = ".".join(part for part in parts if part != "__init__")
        found[name] = ast.parse(path.read_text(encoding="utf-8"), str(path))
    return found


def is_type_checking(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and ast.unparse(node.test).endswith("TYPE_CHECKING")


def imports(node: ast.AST, *, for_types: bool) -> Iterator[tuple[str, int]]:
    """Every (module, line) that is imported below this node; relative imports are left out."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Import):
            yield from ((alias.name, child.lineno) for alias in child.names)
        elif isinstance(child, ast.ImportFrom) and child.level == 0:
            yield from ((f"{child.module}.{alias.name}", child.lineno) for alias in child.names)
        elif is_type_checking(child) and not for_types:
            for other in child.orelse:
                yield from imports(other, for_types=for_types)
        else:
            yield from imports(child, for_types=for_types)


def family(module: str) -> str:
    return module.partition(".")[0]


def is_command(module: str) -> bool:
    """`python -m mpisgd.x` stands above everything, like train; nobody imports it."""
    return module.endswith("__main__")


def level(name: str) -> int:
    for number, names in enumerate(LAYERS):
        if name in names:
            return number
    raise KeyError(f"{name}: stands in no layer; enter it in LAYERS of {__file__}")


def entries() -> set[str]:
    """Modules and folders directly below mpisgd."""
    return {family(name) for name in sources() if name}


def test_every_module_has_a_layer_and_every_entry_a_module():
    listed = [name for names in LAYERS for name in names]
    assert len(listed) == len(set(listed))
    assert set(listed) == entries()


def test_nothing_imports_upward_or_sideways():
    wrong = []
    for module, tree in sources().items():
        for target, line in imports(tree, for_types=True):
            root, _, rest = target.partition(".")
            seen = family(rest)
            # A name of the package itself (`__version__`) is below everything.
            if root != "mpisgd" or seen not in entries() or seen == family(module):
                continue
            if is_command(module) and not rest.endswith("__main__"):
                continue
            if not module or level(seen) >= level(family(module)):
                wrong.append(f"mpisgd.{module}:{line} imports mpisgd.{seen}")
    assert wrong == []


def test_own_family_is_imported_relatively():
    wrong = [
        f"mpisgd.{module}:{line} imports {target}"
        for module, tree in sources().items()
        for target, line in imports(tree, for_types=True)
        if module and target.startswith(f"mpisgd.{family(module)}.") and "." in module
    ]
    assert wrong == []


@pytest.mark.parametrize("package", BORDERS)
def test_packages_stay_behind_their_borders(package):
    allowed = BORDERS[package]
    wrong = [
        f"mpisgd.{module}:{line} imports {target}"
        for module, tree in sources().items()
        for target, line in imports(tree, for_types=False)
        # A command (`python -m mpisgd.x`) may parse its own options.
        if family(target) == package
        and family(module) not in allowed
        and not (package == "argparse" and is_command(module))
    ]
    assert wrong == []


def test_torch_stays_out_of_the_array_code():
    wrong = [
        f"mpisgd.{module}:{line}"
        for module, tree in sources().items()
        for target, line in imports(tree, for_types=False)
        if family(target) == "torch" and family(module) in NO_TORCH
    ]
    assert wrong == []


def test_nobody_imports_the_kernels_folder_by_its_bare_name():
    # A package on PyPI has that name too.
    places = [*PACKAGE.rglob("*.py"), *(ROOT / "kernels").rglob("*.py")]
    places += [*(ROOT / "tests").rglob("*.py")]
    wrong = [
        f"{path}:{line}"
        for path in places
        for target, line in imports(ast.parse(path.read_text(encoding="utf-8")), for_types=True)
        if family(target) == "kernels"
    ]
    assert wrong == []


def module_level_imports(tree: ast.Module) -> list[str]:
    return [
        target
        for node in tree.body
        if isinstance(node, (ast.Import, ast.ImportFrom))
        for target, _ in imports(ast.Module(body=[node], type_ignores=[]), for_types=False)
    ]


def test_no_module_starts_mpi_when_it_is_imported():
    wrong = [m for m, tree in sources().items() if "mpi4py.MPI" in module_level_imports(tree)]
    assert wrong == []


def test_collectives_move_buffers_not_pickles():
    wrong = [
        f"mpisgd.{module}:{node.lineno} calls {ast.unparse(node.func)}"
        for module, tree in sources().items()
        if family(module) == "collectives"
        for node in ast.walk(tree)
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr in PICKLING
        and "comm" in ast.unparse(node.func.value)
    ]
    assert wrong == []


@pytest.mark.parametrize("module", sorted(sources()))
def test_files_and_functions_stay_short(module):
    tree = sources()[module]
    last = max((node.end_lineno for node in tree.body if node.end_lineno), default=0)
    assert last <= FILE_LINES
    functions = (ast.FunctionDef, ast.AsyncFunctionDef)
    lengths = {
        node.name: (node.end_lineno or 0) - node.lineno + 1
        for node in ast.walk(tree)
        if isinstance(node, functions)
    }
    assert {name: n for name, n in lengths.items() if n > FUNCTION_LINES} == {}


@pytest.mark.parametrize("module", sorted(sources()))
def test_annotations_are_never_evaluated(module):
    # Python 3.10 is supported; annotations may use what is only imported for type checkers.
    tree = sources()[module]
    code = [node for node in tree.body if not isinstance(node, ast.Expr)]
    assert not code or ast.unparse(code[0]) == "from __future__ import annotations"


def test_files_are_named_after_what_they_hold():
    vague = {"utils", "util", "helpers", "helper", "core", "common", "misc"}
    assert [m for m in sources() if m.rpartition(".")[2] in vague] == []


def python(code: str) -> str:
    """Run code in a fresh interpreter that is shown no GPU; its output."""
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=ROOT,
        env={"PATH": "", "CUDA_VISIBLE_DEVICES": "", "HOME": str(Path.home())},
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        check=False,
        timeout=100,
    )
    assert done.returncode == 0, done.stdout
    return done.stdout.strip()


def test_importing_the_package_is_cheap_and_starts_nothing():
    code = "import sys, mpisgd; print({'mpi4py.MPI', 'numba', 'torch'} & set(sys.modules))"
    assert python(code) == "set()"


def test_importing_every_module_starts_no_mpi_and_needs_no_gpu():
    # Kernels for the GPU are imported by what found one.
    modules = [
        f"mpisgd.{name}".rstrip(".")
        for name in sources()
        if not name.endswith(("_cuda", "__main__")) and not name.startswith("kernels.warp")
    ]
    code = (
        f"import importlib, sys\nfor name in {modules!r}: importlib.import_module(name)\n"
        "print('mpi4py.MPI' in sys.modules, 'numba.cuda' in sys.modules)"
    )
    assert python(code) == "False False"


def test_every_public_name_can_be_had():
    assert python("import mpisgd; [getattr(mpisgd, name) for name in mpisgd.__all__]") == ""
