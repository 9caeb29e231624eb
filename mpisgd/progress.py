"""Where a run reports to: lines on stdout and in log files, JSON objects, a bar on a terminal."""

from __future__ import annotations

import contextlib
import json
import math
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, TextIO

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn


class Bar:
    """A progress bar in samples on stderr; nothing at all unless stderr is a terminal."""

    def __init__(self, stream: TextIO) -> None:
        """`stream`: where the bar would be drawn."""
        self._progress: Progress | None = None
        console = Console(file=stream)
        if stream.isatty() and not console.is_dumb_terminal:
            self._progress = Progress(
                TextColumn("{task.completed:,.0f}/{task.total:,.0f} samples"),
                BarColumn(),
                TimeElapsedColumn(),
                TimeRemainingColumn(),
                console=console,
                redirect_stdout=False,  # stdout may be a file: its lines stay there
                redirect_stderr=False,
                transient=True,
            )

    def show(self, samples: int, total: int) -> None:
        """Draw the bar at `samples` of `total`."""
        if self._progress is None:
            return
        if not self._progress.tasks:
            self._progress.add_task("samples", total=total, completed=min(samples, total))
            self._progress.start()  # draws the bar at once
        self._progress.update(self._progress.tasks[0].id, completed=min(samples, total))

    def print_above(self, text: str) -> bool:
        """Print a line above a bar that is being drawn; False if there is none."""
        if self._progress is None or not self._progress.tasks:
            return False
        self._progress.console.print(text, markup=False, highlight=False, soft_wrap=True)
        return True

    def close(self) -> None:
        """Remove the bar."""
        if self._progress is not None:
            self._progress.stop()


class Reporter:
    """What one rank says: nothing at all unless it was given somewhere to say it."""

    def __init__(
        self,
        *,
        speaks: bool,
        prefix: str = "",
        log: Path | None = None,
        events: Path | None = None,
        bar: Bar | None = None,
    ) -> None:
        """Open the files for appending.

        Args:
            speaks: whether lines go to stdout.
            prefix: in front of every line on stdout.
            log: a file that gets the lines too.
            events: a file that gets one JSON object per event.
            bar: shown between lines.

        Raises:
            OSError: a file cannot be opened; those opened before are closed.
        """
        self._speaks, self._prefix = speaks, prefix
        self._bar = bar
        self._log = _open_for_append(log) if log is not None else None
        try:
            self._events = _open_for_append(events) if events is not None else None
        except OSError:
            self.close()
            raise

    def begin(self, banner: str, **config: Any) -> None:
        """Say the banner and write the first event.

        Raises:
            OSError: a file cannot be written, naming it: the run has not begun yet.
        """
        self._say(banner, self._write)
        self._write("_events", _as_json("config", config))

    def line(self, text: str) -> None:
        """Say one line, or several in one piece: one write, flushed, so that ranks don't mix."""
        self._say(text, self._try_to_write)

    def event(self, kind: str, **values: Any) -> None:
        """Append one JSON object; numbers that are not finite become null."""
        self._try_to_write("_events", _as_json(kind, values))

    def _say(self, text: str, write: Callable[[str, str], None]) -> None:
        write("_log", text)
        if not self._speaks:
            return
        shown = "\n".join(f"{self._prefix}{part}" for part in text.split("\n"))
        if self._bar is not None and sys.stdout.isatty() and self._bar.print_above(shown):
            return
        sys.stdout.write(f"{shown}\n")
        sys.stdout.flush()

    def _write(self, name: str, text: str) -> None:
        """Append a line to the file `name` ("_log" or "_events"), if there is one."""
        stream: TextIO | None = getattr(self, name)
        if stream is None:
            return
        try:
            stream.write(f"{text}\n")
            stream.flush()
        except OSError as error:
            setattr(self, name, None)
            with contextlib.suppress(OSError):  # it tries once more to write what it holds
                stream.close()
            option = "--json" if name == "_events" else "--log-dir"
            raise OSError(
                f"{option}: cannot write {stream.name}: {error.strerror or error}; make room, or"
                " name another place"
            ) from error

    def _try_to_write(self, name: str, text: str) -> None:
        """The same; a disk that fills up while training costs the rest of the file, not the run."""
        try:
            self._write(name, text)
        except OSError as error:
            sys.stderr.write(f"{self._prefix}Warning: {error}; nothing more is written there\n")
            sys.stderr.flush()

    def show(self, samples: int, total: int) -> None:
        """Move the bar."""
        if self._bar is not None:
            self._bar.show(samples, total)

    def close(self) -> None:
        """Close files and bar; harmless twice."""
        if self._bar is not None:
            self._bar.close()
        for stream in (self._log, getattr(self, "_events", None)):
            if stream is not None:
                with contextlib.suppress(OSError):  # said when it was written
                    stream.close()


def _open_for_append(path: Path) -> TextIO:
    return path.open("a", encoding="utf-8")


def _as_json(kind: str, values: dict[str, Any]) -> str:
    return json.dumps({"event": kind, **_finite(values)}, allow_nan=False)


def _finite(value: Any) -> Any:
    """`value` with None for numbers that JSON has no word for."""
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value
