from __future__ import annotations

import pytest

import mpisgd
from mpisgd.launch import launched_rank
from mpisgd.train import main, one_line


@pytest.mark.parametrize(
    ("environ", "rank"),
    [
        ({}, 0),
        ({"PMI_RANK": "2"}, 2),
        ({"OMPI_COMM_WORLD_RANK": "3"}, 3),
        ({"SLURM_PROCID": "1"}, 1),
        ({"PMI_RANK": "2", "SLURM_PROCID": "0"}, 2),
        ({"PMI_RANK": "no number"}, 0),
    ],
)
def test_launched_rank(environ, rank):
    assert launched_rank(environ) == rank


@pytest.mark.parametrize(("rank", "times"), [("0", 1), ("1", 0)])
def test_only_rank_0_answers(monkeypatch, capsys, rank, times):
    monkeypatch.setenv("PMI_RANK", rank)
    monkeypatch.delenv("OMPI_COMM_WORLD_RANK", raising=False)
    assert main(["--version"]) == 0
    assert capsys.readouterr() == (f"mpisgd.train {mpisgd.__version__}\n" * times, "")


def test_an_error_is_one_printable_line():
    assert one_line("got a\nb\x1b[1m\udcff") == r"got a\nb\x1b[1m\udcff"
    assert len(one_line("9" * 5000)) < 2100
