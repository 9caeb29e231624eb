"""Does 1-bit SGD train as well as 32-bit SGD? Pairs of runs that differ in nothing but the bits.

    python -m benchmarks.accuracy --data-dir DIR --markdown benchmarks/results/accuracy.md

starts `mpiexec -n RANKS python -m mpisgd.train` for each seed at 32 bits and at 1 bit, in an order
that alternates from seed to seed, and reports training loss of the last epoch, test error, and
bytes on the wire. What else the machine does changes none of these; it changes seconds: left out.
"""

from __future__ import annotations

import argparse
import json
import shlex
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

RUN = "--data cifar10 --epochs 4 --epoch-size 12500 --eval-every 0 --warmup 12500"


def command(options: argparse.Namespace, *, bits: int, seed: int) -> list[str]:
    """The training run of one seed at one width; --json comes last."""
    return [
        *("mpiexec", "-n", str(options.ranks), sys.executable, "-m", "mpisgd.train"),
        *("--data-dir", str(options.data_dir), *shlex.split(options.run)),
        *("--quant", str(bits), "--collective", options.collective, "--seed", str(seed)),
    ]


def train(line: list[str]) -> list[dict[str, Any]]:
    """Run one training; its JSON events."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "events.json"
        subprocess.run([*line, "--json", str(path)], check=True, stdout=sys.stderr)
        return [json.loads(event) for event in path.read_text().splitlines()]


def figures(events: list[dict[str, Any]]) -> dict[str, Any]:
    """What a run is judged by."""
    epochs = [event for event in events if event["event"] == "epoch"]
    last, done = epochs[-1], events[-1]
    return {
        "loss": last["loss"],
        "error": done["error"],
        "bytes_per_step": last["wire_bytes_per_rank"] / last["steps"],
        "messages_per_step": last["messages_per_rank"] / last["steps"],
        "bits_on_wire": last["bits_on_wire"],
        "param_hash": done["param_hash"],
    }


def table(rows: list[dict[str, Any]], options: argparse.Namespace) -> str:
    """The results as Markdown, with the command that made them."""
    lines = [
        "# Accuracy at 1 bit beside 32 bits",
        "",
        f"    {shlex.join(command(options, bits=1, seed=0)).replace(sys.executable, 'python')}",
        "",
        f"and the same at 32 bits, {options.ranks} ranks, seeds 0 to {options.seeds - 1}."
        " Loss: mean training loss of the last epoch.",
        "",
        "| seed | bits | loss | test error | bytes sent a step and rank | messages |",
        "|---|---|---|---|---|---|",
    ]
    lines += [
        f"| {r['seed']} | {r['bits']} | {r['loss']:.4f} | {100 * r['error']:.2f} % |"
        f" {r['bytes_per_step']:,.0f} | {r['messages_per_step']:.0f} |"
        for r in rows
    ]
    pairs = [[r for r in rows if r["seed"] == seed] for seed in range(options.seeds)]
    ratios = [one["loss"] / full["loss"] for full, one in (sorted_pair(p) for p in pairs)]
    mean = {
        bits: statistics.mean(r["error"] for r in rows if r["bits"] == bits) for bits in (32, 1)
    }
    full, one = (next(r for r in rows if r["bits"] == bits) for bits in (32, 1))
    lines += [
        "",
        f"Loss at 1 bit over loss at 32 bits: {', '.join(f'{ratio:.3f}' for ratio in ratios)}.",
        f"Mean test error: {100 * mean[1]:.2f} % at 1 bit, {100 * mean[32]:.2f} % at 32 bits.",
        f"Bytes at 32 bits over 1 bit: {full['bytes_per_step'] / one['bytes_per_step']:.2f}.",
        "",
    ]
    return "\n".join(lines)


def sorted_pair(pair: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The runs of one seed, 32 bits first."""
    return sorted(pair, key=lambda row: -row["bits"])


def main() -> None:
    """Run all trainings, and print and write the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0], allow_abbrev=False)
    parser.add_argument("--data-dir", type=Path, required=True, help="where CIFAR-10 lies")
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--collective", default="stripes")
    parser.add_argument("--run", default=RUN, help="options of the run, as one string")
    parser.add_argument("--markdown", type=Path, help="also write the table to this file")
    parser.add_argument("--json", type=Path, help="also append one object per run to this file")
    options = parser.parse_args()
    rows = []
    for seed in range(options.seeds):
        for bits in ((32, 1), (1, 32))[seed % 2]:
            line = command(options, bits=bits, seed=seed)
            row = {"seed": seed, "bits": bits, **figures(train(line))}
            rows.append(row)
            if options.json:
                with options.json.open("a") as out:
                    out.write(json.dumps({**row, "command": shlex.join(line[3:])}) + "\n")
    text = table(rows, options)
    print(text)
    if options.markdown:
        options.markdown.write_text(text)


if __name__ == "__main__":
    main()
