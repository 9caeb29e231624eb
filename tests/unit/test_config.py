from __future__ import annotations

import dataclasses
import re
import subprocess
import sys

import pytest

from mpisgd.config import Answer, ConfigError, Options, flag, make_parser, parse
from mpisgd.refusals import NOT_YET_OPTIONS, NOT_YET_VALUES

FLAGS = [flag(option) for option in dataclasses.fields(Options)]
WHOLE = {
    "--seed": 0,
    "--column": 1,
    "--min-numel": 0,
    "--warmup": 0,
    "--batch": 1,
    "--batch-per-rank": 1,
    "--epochs": 1,
    "--epoch-size": 1,
    "--max-samples": 1,
    "--threads": 1,
    "--eval-every": 0,
}
REAL = ["--lr", "--momentum", "--weight-decay"]
CHOICES = ["--model", "--data", "--sync", "--quant", "--warmup-mode", "--collective", "--device"]
TEXTS = ["--data-dir", "--log-dir", "--json"]
BOOLEANS = ["--allow-gpu-sharing", "--profile", "--all-ranks"]


def refusal(*arguments: str) -> str:
    with pytest.raises(ConfigError) as caught:
        parse(arguments)
    return str(caught.value)


def help_text() -> str:
    with pytest.raises(Answer) as caught:
        parse(["--help"])
    return str(caught.value)


def test_every_option_is_tested_below():
    assert {*WHOLE, *REAL, *CHOICES, *TEXTS, *BOOLEANS, "--lr-scale"} == set(FLAGS)


def test_no_arguments_are_the_defaults():
    assert parse([]) == Options()
    assert Options().global_batch(4) == 128
    assert (Options().quant, Options().lr, Options().momentum) == (32, 0.1, 0.9)


def test_the_main_command():
    options = parse(["--quant", "1", "--warmup", "50000"])
    assert (options.quant, options.warmup, options.warmup_mode) == (1, 50_000, "float32")


def test_spellings_of_the_cntk_script():
    arguments = "-n resnet110 -q 1 -a 50000 -e 2 -es 512 -datadir d -logdir l".split()
    expected = Options(
        model="resnet110",
        quant=1,
        warmup=50_000,
        epochs=2,
        epoch_size=512,
        data_dir="d",
        log_dir="l",
    )
    assert parse(arguments) == expected


def test_equals_signs_and_booleans():
    options = parse(["--batch-per-rank=32", "--profile", "--all-ranks", "--allow-gpu-sharing"])
    assert options.global_batch(3) == 96
    assert options.profile
    assert options.all_ranks
    assert options.allow_gpu_sharing


@pytest.mark.parametrize("name", WHOLE)
@pytest.mark.parametrize("value", ["nan", "inf", "-1", "-0.5", "1.5", "1e3", "", "abc", "9" * 30])
def test_whole_numbers_are_checked(name, value):
    text = refusal(name, value)
    assert text.startswith(f"{name}: got ")
    assert "wanted a whole number" in text


@pytest.mark.parametrize(("name", "lowest"), WHOLE.items())
def test_whole_numbers_have_the_right_lower_end(name, lowest):
    attribute = name[2:].replace("-", "_")
    assert getattr(parse([name, str(lowest)]), attribute) == lowest
    refusal(name, str(lowest - 1))


@pytest.mark.parametrize("name", REAL)
@pytest.mark.parametrize("value", ["nan", "inf", "-1", "", "abc", "-inf"])
def test_real_numbers_are_checked(name, value):
    assert refusal(name, value).startswith(f"{name}: ")


def test_ends_of_real_numbers():
    assert parse(["--momentum", "0"]).momentum == 0
    assert parse(["--weight-decay", "0"]).weight_decay == 0
    refusal("--momentum", "1")
    refusal("--lr", "0")


@pytest.mark.parametrize("name", TEXTS)
@pytest.mark.parametrize("value", ["", "  "])
def test_empty_names_are_refused(name, value):
    assert refusal(name, value).startswith(f"{name}: got ")


@pytest.mark.parametrize("name", CHOICES)
def test_unknown_values_are_refused_with_the_known_ones(name):
    text = refusal(name, "nosuch")
    assert text.startswith(f"{name}: got nosuch; must be one of ")
    for value in text.partition("one of ")[2].split(", "):
        parse([name, value, *(["--warmup", "9"] if name == "--warmup-mode" else [])])


@pytest.mark.parametrize("value", ["7", "0", "-1", "33", "1.0", "True"])
def test_widths_that_do_not_exist(value):
    assert "must be one of 1, 32" in refusal("--quant", value)


@pytest.mark.parametrize(
    ("name", "value"), [(n, v) for n, values in NOT_YET_VALUES.items() for v in values]
)
def test_values_of_later_versions_are_refused_by_name(name, value):
    assert refusal(name, value).startswith(f"{name} {value}: not available in this version")
    assert value not in help_text().split(f"{name} ")[1].split("--")[0].replace(",", " ").split()


@pytest.mark.parametrize("name", NOT_YET_OPTIONS)
@pytest.mark.parametrize("tail", [[], ["value"]])
def test_options_of_later_versions_are_refused_by_name(name, tail):
    text = refusal(name, *tail)
    assert text.startswith(f"{name}: not available in this version (")
    assert text.endswith("; leave it out")
    known = {s for action in make_parser()._actions for s in action.option_strings}
    assert name not in known


def test_unknown_options_get_a_hint_and_the_list():
    text = refusal("--bacth", "64")
    assert text.startswith("--bacth: unknown option; did you mean --batch? known are ")
    for name in FLAGS:
        assert name in text
    assert "did you mean" not in refusal("--xyzzy")


@pytest.mark.parametrize("name", ["--warm", "--epoch", "--max", "--quan", "--prof"])
def test_abbreviations_are_unknown(name):
    assert refusal(name, "1").startswith(f"{name}: unknown option")


def test_what_belongs_to_no_option():
    assert refusal("resnet20").startswith("'resnet20': belongs to no option")
    assert "takes no value" in refusal("--profile=1")
    assert "expected one argument" in refusal("--batch")


@pytest.mark.parametrize(
    ("arguments", "subject"),
    [
        ("--batch 64 --batch-per-rank 16", "--batch"),
        ("--sync local --quant 1", "--quant"),
        ("--sync local --warmup 5", "--warmup"),
        ("--sync local --collective stripes", "--collective"),
        ("--warmup-mode replicate", "--warmup-mode"),
    ],
)
def test_combinations_that_cannot_be_honoured(arguments, subject):
    assert refusal(*arguments.split()).startswith(f"{subject}: ")


@pytest.mark.parametrize(
    ("text", "value"), [("none", "none"), ("linear", "linear"), ("sqrt", "sqrt"), ("2.5", 2.5)]
)
def test_lr_scale(text, value):
    assert parse(["--lr-scale", text]).lr_scale == value


@pytest.mark.parametrize("text", ["cubic", "0", "-1", "nan", "inf", ""])
def test_lr_scale_is_checked(text):
    assert refusal("--lr-scale", text).startswith("--lr-scale: ")


@pytest.mark.parametrize(
    "values",
    [{"profile": 1}, {"profile": "False"}, {"batch": True}, {"quant": True}, {"lr": "0.1"}],
)
def test_types_are_checked_without_a_command_line_too(values):
    with pytest.raises(ConfigError):
        Options(**values)


def test_help_names_every_option_and_no_other():
    text = help_text()
    shown = set(re.findall(r"(?<![-\w])--?[a-zA-Z][-\w]*", text))
    assert set(FLAGS) < shown
    assert not shown & set(NOT_YET_OPTIONS)


def test_as_text_tells_any_two_different_options_apart():
    assert dict(parse(["--lr", "0.2"]).as_text())["--lr"] == "0.2"
    assert [name for name, _ in Options().as_text()] == FLAGS
    assert parse(["--json", "a"]).as_text() != parse(["--json", "b"]).as_text()


def test_help_starts_neither_torch_nor_mpi():
    code = (
        "import sys; from mpisgd.train import main; code = main(['--help']); "
        "heavy = {'torch', 'mpi4py', 'numba', 'torchvision', 'sklearn', 'rich'}; "
        "sys.exit(code or ' '.join(heavy & set(sys.modules)) or 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("usage: python -m mpisgd.train")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["-b3"], "-b: not available in this version"),
        (["-profile"], "use --profile instead"),
        (["-s", "True"], "use --batch-per-rank SAMPLES instead"),
        (["--warmup", "9" * 26], "0 to 4611686018427387904"),
        (["--sync", "local", "--column", "64"], "--column: given together with --sync local"),
    ],
)
def test_refusals_say_what_to_do(arguments, words):
    with pytest.raises(ConfigError, match=words):
        parse(arguments)
