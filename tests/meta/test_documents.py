"""The documents say what is there: options, JSON fields, commands, links; the example runs."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from dataclasses import fields
from pathlib import Path

import pytest

from mpisgd.config import Options, flag

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text()
MPIEXEC = Path(sys.executable).parent / "mpiexec"
MAIN_COMMAND = "mpiexec -n 4 python -m mpisgd.train --quant 1 --warmup 50000"


def run(*command: str | Path, cwd: Path) -> str:
    launched = ("PMI", "OMPI_COMM", "PMIX_")
    environment = {k: v for k, v in os.environ.items() if not k.startswith(launched)}
    done = subprocess.run(
        [str(part) for part in command],
        cwd=cwd,
        env={**environment, "OMP_NUM_THREADS": "1"},
        text=True,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        check=False,
        timeout=110,
    )
    assert done.returncode == 0, done.stdout
    return done.stdout


def test_the_table_of_options_is_complete():
    table = [line.split(" | ")[0] for line in README.splitlines() if line.startswith("| `-")]
    named = re.findall(r"--[a-z][a-z-]*", " ".join(table))
    assert sorted(named) == sorted(flag(option) for option in fields(Options))
    short = re.findall(r"`(-[a-z]+)`", " ".join(table))
    assert sorted(short) == sorted(s for o in fields(Options) for s in o.metadata.get("short", ()))


def test_the_quickstart_runs_the_command_of_the_readme():
    assert MAIN_COMMAND in README
    assert f'exec {MAIN_COMMAND} "$@"' in (ROOT / "run" / "quickstart.sh").read_text()


@pytest.mark.parametrize(
    "document", ["README.md", "CONTRIBUTING.md", "docs/sharp-bits.md", "docs/python.md"]
)
def test_links_and_named_files_exist(document):
    text = (ROOT / document).read_text()
    links = [to for to in re.findall(r"\]\(([^)]+)\)", text) if "://" not in to]
    named = re.findall(r"\b(?:run|tests|docs|benchmarks)/[\w./-]*\w", text)
    # Links are relative to the document, other names to the top.
    places = [(ROOT / document).parent / to for to in links] + [ROOT / name for name in named]
    assert [str(place) for place in places if not place.exists()] == []


PYTHON_EXAMPLES = dict(
    # The heading before each example of docs/python.md, and the example.
    re.findall(
        r"^##+ ([^\n]+)\n(?:(?!^##+ ).)*?^```python\n(.*?)^```",
        (ROOT / "docs" / "python.md").read_text(),
        re.DOTALL | re.MULTILINE,
    )
)
PRINTED = {
    "World": r"1 ranks on 1 nodes, cpu .+\n",
    "A step": r"1920 30 0\n",
    "Accumulation": r"13\n",
    "Mixed precision": r"3\n",
    "Saving and going on": r"True\n",
    "Local": r"True 0\n",
    "Exchange": r"[0-9]+ tensor.*\n",
}


def test_every_python_example_is_run():
    assert list(PYTHON_EXAMPLES) == list(PRINTED)
    assert (ROOT / "docs" / "python.md").read_text().count("```python") == len(PRINTED)


@pytest.mark.parametrize("theme", PRINTED)
def test_the_python_examples_run(theme, tmp_path):
    (tmp_path / "example.py").write_text(PYTHON_EXAMPLES[theme])
    printed = run(sys.executable, "example.py", cwd=tmp_path)
    assert re.fullmatch(PRINTED[theme], printed)


def test_the_example_of_the_readme_runs(tmp_path):
    (example,) = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    (tmp_path / "example.py").write_text(example)
    printed = run(MPIEXEC, "-n", "2", sys.executable, "example.py", cwd=tmp_path)
    samples, wire_bytes, digest = printed.split()
    assert int(samples) == 100 * 32 * 2
    assert int(wire_bytes) > 0
    assert re.fullmatch("[0-9a-f]{16}", digest)


def test_the_json_fields_of_the_readme_are_those_of_a_run(tmp_path):
    length = "--max-samples 64 --batch 64 --device cpu --json events"
    run(sys.executable, "-m", "mpisgd.train", *length.split(), cwd=tmp_path)
    events = [json.loads(line) for line in (tmp_path / "events").read_text().splitlines()]
    rows = dict(re.findall(r"^\| `(config|epoch|eval|done)` \| (.*) \|$", README, re.MULTILINE))
    assert {event["event"] for event in events} == set(rows)
    for event in events:
        assert sorted(rows[event["event"]].split(", ")) == sorted(set(event) - {"event"})
