from __future__ import annotations

import io
import json
import sys
from pathlib import Path

import pytest

from mpisgd.progress import Bar, Reporter


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture(autouse=True)
def _capable_terminal(monkeypatch):
    monkeypatch.setenv("TERM", "xterm")


class Counting(io.StringIO):
    """Remembers every write."""

    def __init__(self) -> None:
        super().__init__()
        self.writes: list[str] = []

    def write(self, text: str) -> int:
        self.writes.append(text)
        return super().write(text)


def test_a_line_is_one_write(monkeypatch):
    out = Counting()
    monkeypatch.setattr(sys, "stdout", out)
    reporter = Reporter(speaks=True, prefix="[rank 2] ")
    reporter.line("one\ntwo")
    assert out.writes == ["[rank 2] one\n[rank 2] two\n"]


def test_silence(capsys):
    reporter = Reporter(speaks=False)
    reporter.line("nothing")
    reporter.event("epoch", loss=1.0)
    reporter.show(1, 2)
    reporter.close()
    assert capsys.readouterr() == ("", "")


def test_log_and_events_are_appended_and_flushed(tmp_path, capsys):
    log, events = tmp_path / "train.log", tmp_path / "run.json"
    log.write_text("before\n")
    reporter = Reporter(speaks=True, prefix="[rank 0] ", log=log, events=events)
    reporter.line("a line")
    reporter.event("epoch", loss=float("nan"), phases={"data": float("inf")}, more=[1, -0.5])
    assert log.read_text() == "before\na line\n"
    written = json.loads(events.read_text())
    assert written == {"event": "epoch", "loss": None, "phases": {"data": None}, "more": [1, -0.5]}
    reporter.event("done", samples=3)
    reporter.close()
    reporter.close()
    assert len(events.read_text().splitlines()) == 2
    assert capsys.readouterr().out == "[rank 0] a line\n"


def test_a_place_that_cannot_be_written_is_an_oserror(tmp_path):
    with pytest.raises(OSError, match="nowhere"):
        Reporter(speaks=True, log=tmp_path / "log", events=tmp_path / "nowhere" / "f.json")


def test_no_bar_without_a_terminal(capsys):
    stream = io.StringIO()
    reporter = Reporter(speaks=True, bar=Bar(stream))
    reporter.show(64, 128)
    reporter.line("a line")
    reporter.close()
    assert stream.getvalue() == ""
    assert capsys.readouterr().out == "a line\n"


def test_no_bar_on_a_terminal_that_cannot_move_its_cursor(monkeypatch, capsys):
    monkeypatch.setenv("TERM", "dumb")
    stream = Terminal()
    reporter = Reporter(speaks=True, bar=Bar(stream))
    reporter.show(64, 128)
    reporter.close()
    assert stream.getvalue() == ""


def test_the_bar_leaves_lines_on_stdout_when_that_is_no_terminal(capsys):
    stream = Terminal()
    reporter = Reporter(speaks=True, bar=Bar(stream))
    reporter.show(64, 128)
    reporter.line("a [1] line")
    reporter.close()
    assert "64/128 samples" in stream.getvalue()
    assert capsys.readouterr().out == "a [1] line\n"


def test_lines_appear_above_the_bar_on_a_terminal(monkeypatch):
    stream, out = Terminal(), Terminal()
    monkeypatch.setattr(sys, "stdout", out)
    reporter = Reporter(speaks=True, bar=Bar(stream))
    reporter.line("before the bar")
    reporter.show(64, 128)
    reporter.line("a [1] line")
    reporter.close()
    assert out.getvalue() == "before the bar\n"
    assert "a [1] line" in stream.getvalue()


def test_a_full_disk_before_the_run_is_an_error_that_names_the_option(capsys):
    reporter = Reporter(speaks=True, events=Path("/dev/full"))
    with pytest.raises(OSError, match="--json: cannot write /dev/full"):
        reporter.begin("banner", ranks=2)
    reporter.close()


def test_a_disk_that_fills_up_costs_the_file_and_not_the_run(capsys):
    reporter = Reporter(speaks=True, log=Path("/dev/full"))
    reporter.line("one")
    reporter.line("two")
    reporter.event("done")
    reporter.close()
    out, err = capsys.readouterr()
    assert out == "one\ntwo\n"
    assert err.count("Warning: --log-dir: cannot write /dev/full") == 1
