from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest

from mpisgd import failures
from mpisgd.failures import JobExit, exit_code
from mpisgd.leaving import Job


class Aborted(Exception):
    pass


class Recorder:
    """A job of rank 1 whose end is recorded; without peers nobody is waited for."""

    def __init__(self) -> None:
        self.codes: list[int] = []
        self.finalized = False
        self.job = Job(1, self.abort, lambda: self.finalized, any_thread=True)

    def abort(self, code: int) -> None:
        self.codes.append(code)


@pytest.fixture
def recorder(monkeypatch: pytest.MonkeyPatch) -> Recorder:
    recorder = Recorder()
    monkeypatch.setattr(failures, "_job", recorder.job)
    return recorder


def raised_by(call: Callable[[], Any]) -> tuple[type[BaseException], BaseException, Any]:
    with pytest.raises(BaseException) as caught:  # noqa: PT011
        call()
    return type(caught.value), caught.value, caught.tb


@pytest.mark.parametrize(
    ("status", "code"),
    [(None, 0), (0, 0), (False, 0), (3, 3), (True, 1), (-1, 255), (256, 0), ("text", 1), ("", 1)],
)
def test_exit_code(status: object, code: int) -> None:
    assert exit_code(status) == code


def test_an_exit_that_is_caught_is_harmless(recorder: Recorder) -> None:
    with pytest.raises(SystemExit) as caught:
        failures._exit(3)
    assert caught.value.code == 3
    caught.value.code = 4
    assert caught.value.code == 4
    assert caught.value.args == (3,)
    with pytest.raises(SystemExit) as caught:
        failures._exit()
    assert caught.value.code is None
    assert recorder.codes == []


def test_the_last_read_of_a_code_ends_the_job(
    recorder: Recorder, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Job, "_all_leave", lambda job: False)
    assert failures._leave("no paper") == 1
    assert failures._leave(0) == 0
    assert failures._leave(None) is None
    assert recorder.codes == [1]
    assert capsys.readouterr().err == (
        "[rank 1] no paper\n[rank 1] left the program with code 1: ending the job\n"
    )


def test_the_traceback_has_the_rank_in_every_line(
    recorder: Recorder, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(failures, "_previous_hook", sys.__excepthook__)
    failures._on_exception(*raised_by(lambda: int("three\nfour")))
    lines = capsys.readouterr().err.splitlines()
    assert lines[0] == "[rank 1] Traceback (most recent call last):"
    assert all(line.startswith("[rank 1] ") for line in lines)
    assert recorder.codes == [1]


def test_keyboard_interrupt_has_its_own_code(recorder: Recorder) -> None:
    error = KeyboardInterrupt()
    failures._on_exception(KeyboardInterrupt, error, None)
    assert recorder.codes == [130]


def test_a_hook_of_the_program_is_called_once_instead_of_ours(
    recorder: Recorder, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[Any] = []
    monkeypatch.setattr(failures, "_previous_hook", lambda *args: seen.append(args))
    error = ValueError("x")
    failures._on_exception(ValueError, error, None)
    assert seen == [(ValueError, error, None)]
    assert capsys.readouterr().err == "[rank 1] ValueError ends the job\n"
    assert recorder.codes == [1]


def test_after_mpi_the_program_is_plain_python(
    recorder: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    recorder.finalized = True
    seen: list[Any] = []
    monkeypatch.setattr(failures, "_previous_hook", lambda *args: seen.append(args))
    failures._on_exception(ValueError, ValueError("x"), None)
    assert len(seen) == 1
    assert failures._leave(3) == 3
    assert recorder.codes == []


def test_the_job_ends_also_without_stderr(
    recorder: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stderr", None)
    failures._on_exception(ValueError, ValueError("x"), None)
    assert recorder.codes == [1]


def test_an_exit_is_the_class_that_callers_know() -> None:
    assert issubclass(JobExit, SystemExit)


def test_errors_of_a_forked_child_are_its_own() -> None:
    """As a data loader's worker: it must not touch MPI. In a fresh process, forked while it has
    one thread."""
    program = """
import os, sys
from mpisgd import failures
from mpisgd.leaving import Job
aborted = []
failures._job = Job(1, aborted.append, lambda: False, any_thread=True)
failures._set_hooks()
child = os.fork()
if not child:
    sys.exit(5)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), aborted)
failures._job = None
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.stdout.splitlines()[-1] == "5 []", done.stdout + done.stderr
