"""`python -m mpisgd.train` as users start it: its own mpiexec, exit codes, and who prints what.

What needs no launch of its own is tested in tests/mpi/test_job.py and tests/unit/test_config.py.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

import mpisgd
from tests.launch.jobs import FAILING, WHEELS, environment, mpiexec_of, run_job

# On a busy machine starting Python, torch and MPI on several ranks takes long.
pytestmark = pytest.mark.timeout(300)
LIMIT_S = 240
SHORT = ["--data", "digits", "--batch", "12", "--epoch-size", "12", "--max-samples", "24"]


def start(
    *arguments: str, ranks: int = 2, python: str = sys.executable, folder: Path | None = None
) -> subprocess.CompletedProcess[str]:
    """Run the command to its end; 0 ranks: without mpiexec."""
    launcher = [mpiexec_of(python), "-n", str(ranks)] if ranks else []
    return wait_for([*launcher, python, "-m", "mpisgd.train", *arguments], folder)


def wait_for(command: list[str], folder: Path | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command,
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        cwd=folder,
        env=environment({"OMP_NUM_THREADS": "1"}),
    )


def assert_refused(done: subprocess.CompletedProcess[str], text: str) -> None:
    """Exit code 2, one error line, nothing else of ours."""
    assert done.returncode == 2, done.stderr
    errors = [line for line in done.stderr.splitlines() if "mpisgd.train: error: " in line]
    assert len(errors) == 1, done.stderr
    assert re.search(text, errors[0]), errors[0]
    assert "Traceback" not in done.stderr
    assert "rank 0]" not in done.stderr
    assert "Finished Epoch" not in done.stdout


@pytest.mark.parametrize("python", WHEELS)
def test_a_bad_value(python):
    done = start("--quant", "7", ranks=3, python=python)
    assert_refused(done, "error: --quant: got 7; must be one of 1, 32$")
    if python == sys.executable:
        assert done.stdout == ""
        assert len(done.stderr.splitlines()) == 1


def test_a_batch_too_small_for_batch_norm():
    done = start("--data", "digits", "--batch", "2", ranks=4)
    assert_refused(done, "--batch: 2 over 4 ranks leaves 0 samples on some; .* --batch 8 or more")


def test_a_json_file_that_cannot_be_written(tmp_path):
    done = start("--json", "nowhere/run.json", folder=tmp_path)
    assert_refused(done, r"--json: cannot write nowhere/run.json: .* \(rank 0\)$")


def test_a_truncated_data_file(tmp_path):
    names = [*(f"data_batch_{i}.bin" for i in range(1, 6)), "test_batch.bin"]
    for name in names:
        (tmp_path / name).write_bytes(b"\0" * 1000)
    done = start("--data", "cifar10", "--data-dir", ".", folder=tmp_path)
    assert_refused(done, "data_batch_1.bin")


def test_bad_options_on_one_rank_only():
    train = [sys.executable, "-m", "mpisgd.train"]
    command = [mpiexec_of(sys.executable), "-n", "1", *train]
    done = wait_for([*command, ":", "-n", "1", *train, "--checkpoint", "d"])
    assert_refused(done, r"--checkpoint: not available in this version .* \(rank 1\)$")


@pytest.mark.parametrize("option", ["--help", "--version"])
def test_answers_are_printed_once(option):
    done = start(option, ranks=3)
    assert (done.returncode, done.stderr) == (0, "")
    expected = "usage: " if option == "--help" else f"mpisgd.train {mpisgd.__version__}"
    assert done.stdout.count(expected) == 1


@pytest.mark.parametrize("python", WHEELS)
def test_a_run(tmp_path, python):
    done = start(
        *SHORT, "--quant", "1", "--warmup", "12", "--json", "run.json", "--log-dir", "logs",
        "--profile", ranks=3, python=python, folder=tmp_path,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    lines = done.stdout.splitlines()
    assert lines[0].startswith("mpisgd ")
    assert "Quantization: 1 bit from sample 12 (warm-up 12)" in lines
    assert sum(line.startswith("Finished Epoch [") for line in lines) == 2
    assert sum(line.startswith("Finished Evaluation [") for line in lines) == 2
    assert (tmp_path / "logs" / "train.log").read_text() == done.stdout
    events = [json.loads(line) for line in (tmp_path / "run.json").read_text().splitlines()]
    kinds = ["config", "epoch", "eval", "epoch", "eval", "done"]
    assert [event["event"] for event in events] == kinds
    assert [events[1]["bits_on_wire"], events[3]["bits_on_wire"]] == [32, 1]
    assert events[0]["options"]["quant"] == 1
    assert events[-1]["samples"] == 24


def test_without_mpiexec(tmp_path):
    done = start(*SHORT, "--quant", "1", ranks=0, folder=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert "1 rank on 1 node" in done.stdout
    assert "Warning: --quant 1 with one rank" in done.stdout
    assert "Quantization: " not in done.stdout


@pytest.mark.parametrize(
    ("how", "said"),
    [("raise", "[rank 1] ValueError: this sample is unreadable"), ("kill", "rank 1")],
)
def test_a_rank_that_fails_while_training_ends_all(how, said):
    options = ["--data", "digits", "--batch", "12", "--max-samples", "120", "--quant", "1"]
    ended = run_job(sys.executable, FAILING / "train.py", how, *options, limit_s=LIMIT_S)
    assert said in ended.output
    assert ended.code not in (0, 2)
    assert ended.seconds_after_failure() < 10, ended.output
    assert not ended.left_running
    assert "Finished Epoch" not in ended.output
