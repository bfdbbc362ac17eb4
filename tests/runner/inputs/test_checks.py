"""A study that can hardly mean what it says is warned of at the line."""

import re
import subprocess
import sys

import pytest

from model import attention
from model.record.errors import Unsupported
from runner.commands.init import STUDY
from runner.inputs.checks import doubts, lacking_calls
from runner.inputs.document import InvalidFile
from runner.inputs.expansion import expand
from runner.inputs.study import read_study
from tests.conftest import REPOSITORY, TINY

WARM = TINY.replace("warmup_steps: 0, ", "")


@pytest.mark.parametrize(
    ("base", "extra", "sets", "place", "message"),
    [
        (WARM, "", [], "tiny.yaml:6:11", "warm-up of 100 steps (the default) does not end within 6 steps"),
        (WARM, "matrix: {train.warmup_steps: [5, 6]}\n", [], "tiny.yaml:7:34", "of 6 steps does not end"),
        (TINY, "rules: [{where: {seed: 0}, set: {train.warmup_steps: 9}}]\nmatrix: {seed: [0]}\n", [], "tiny.yaml:7:34", "below 6"),
        (TINY, "", ["train.warmup_steps=6"], "--set train.warmup_steps=6", "below 6"),
        ("title: t\nbase: {data.path: a}\n", "scales: {full: {set: {train.steps: 100}}}\n", [], "tiny.yaml:3:23", "below 100"),
    ],
)  # fmt: skip
def test_a_warm_up_that_never_ends_is_doubted_at_its_line(study, base, extra, sets, place, message):
    (doubt,) = doubts(expand(read_study(study(extra, base=base)), sets=sets))
    assert str(doubt).startswith(f"{place}: warning: ") or f"/{place}: warning: " in str(doubt)
    assert message in str(doubt)


@pytest.mark.parametrize("steps", [101, 1000])
def test_a_warm_up_that_ends_is_not_doubted(study, steps):
    assert doubts(expand(read_study(study("", base=WARM)), sets=[f"train.steps={steps}"])) == []


def test_a_shape_that_nobody_chose_is_doubted(study):
    base = "title: t\nbase: {task: attention, device: cpu, call: {dtype: float32}}\n"
    (doubt,) = doubts(expand(read_study(study("", base=base))))
    assert "without call.shape, attention is timed at B1 T4096 H32 K8 D128" in str(doubt)
    text = "matrix: {call.shape: [B1 T64 H2 D16, B2 T64 H2 D16]}\n"
    assert doubts(expand(read_study(study(text, base=base)))) == []


def test_a_precision_of_sums_is_doubted_where_nothing_is_summed(study):
    base = TINY.replace("warmup_steps: 0, ", "warmup_steps: 0, reduce: float32, ")
    (doubt,) = doubts(expand(read_study(study("matrix: {seed: [0, 1]}\n", base=base))))
    assert "tiny.yaml:6:" in str(doubt)
    assert "train.reduce float32 changes nothing" in str(doubt)
    assert doubts(expand(read_study(study("matrix: {parallel.replicate: [1, 2]}\n", base=base)))) == []


@pytest.mark.parametrize("verb", ["expand", "validate", "launch"])
def test_the_verbs_that_read_a_study_say_their_doubts(study, verb, capsys):
    from runner.commands._options import cells_of

    cells_of(read_study(study("", base=WARM)), "full")
    assert "never reaches its value: set train.warmup_steps below 6" in capsys.readouterr().err
    assert "cells_of(" in (REPOSITORY / "runner" / "commands" / f"{verb}.py").read_text()


def test_the_study_of_the_readme_is_the_one_that_init_writes():
    studies = re.findall(
        r"```yaml\n(# yaml-language-server.*?)```", (REPOSITORY / "README.md").read_text(), re.DOTALL
    )
    assert studies == [STUDY]


def test_the_starter_and_every_shipped_study_test_what_they_vary(tmp_path):
    (tmp_path / "first.yaml").write_text(STUDY)
    for path in (tmp_path / "first.yaml", *sorted((REPOSITORY / "experiments").rglob("*.yaml"))):
        study = read_study(path)
        for scale in ("full", *study.file.scales):
            texts = {doubt.text.partition(" (valid: ")[0] for doubt in doubts(expand(study, scale))}
            # Whoever reports the numbers of 001 names a generation of GPUs, and no card.
            texts.discard("note: not held to a peak: none is known of 'one NVIDIA Hopper GPU' in bfloat16")
            assert texts == set(), f"{path} at scale {scale}"


SPLIT = "scales: {full: {set: {parallel.context: 2}}}\n"
READS = "title: t\nbase:\n  task: inference\n  device: cpu\n  data: {path: a.parquet}\n"
EXPECTED = "rules: [{where: {attention: [cudnn]}, expect: unsupported, because: no parts}]\n"


def warnings_of(study, extra, sets=(), **base):
    return [
        str(doubt) for doubt in lacking_calls(expand(read_study(study(extra, **base)), "full", sets=sets))
    ]


def test_a_backend_without_parts_of_sequences_is_named_at_its_line(study):
    (line,) = warnings_of(study, "matrix: {attention: [flash, cudnn]}\n" + SPLIT)
    place, _, text = line.partition(": ")
    assert place.endswith("tiny.yaml:7:29")
    assert text == f"warning: 'cudnn' {attention.NOT_OFFSET}; or state `expect: unsupported`"


def test_a_backend_that_cannot_decode_is_named_unless_it_reads_prompts_alone(study):
    matrix = "matrix: {attention: [flex, math]}\n"
    base = READS.replace("cpu", "cuda")
    (line,) = warnings_of(study, matrix, base=base)
    assert f"'flex' {attention.NOT_CACHED}" in line
    assert warnings_of(study, matrix, sets=["inference.new_tokens=0"], base=base) == []


def test_what_the_study_expects_is_no_surprise(study):
    assert warnings_of(study, "matrix: {attention: [flash, cudnn]}\n" + SPLIT + EXPECTED) == []


def test_no_backend_is_loaded_where_no_run_asks_for_such_calls(study, monkeypatch):
    def load(name):
        pytest.fail(f"{name} was loaded")

    monkeypatch.setattr(attention, "load", load)
    assert warnings_of(study, "matrix: {attention: [flash, cudnn]}\n", base=TINY.replace("cpu", "cuda")) == []


def test_on_a_cpu_a_backend_for_gpus_is_named_without_torch_being_imported(study):
    path = study("matrix: {attention: [tiled, cudnn]}\n")
    code = (
        "import sys; from pathlib import Path; from runner.inputs import checks, expansion, study; "
        f"cells = expansion.expand(study.read_study(Path({str(path)!r}))); "
        "print(*checks.lacking_calls(cells), 'torch' in sys.modules)"
    )
    process = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "tiny.yaml:7:29: warning: 'cudnn' needs an NVIDIA GPU, but the device is 'cpu'" in process.stdout
    assert process.stdout.endswith("False\n"), "`tiled` imports it, and is not asked"


CALLS = "title: t\nbase:\n  task: attention\n  call: {shape: B1 T128 H2 D16, %s}\n"
EIGHT = "dtype: float8_e4m3fn"


@pytest.mark.parametrize(
    ("call", "extra", "text"),
    [
        (f"backends: math tiled, {EIGHT}", "", "tiny.yaml:4:33: no run of this study can start: each of 'math' and 'tiled' takes no numbers of 8 bits: choose cudnn, custom or flash3 on a GPU, or another precision"),
        ("backends: flash, tile: 64x64", "", "'flash' takes no size of tiles: leave call.tile out, or name in call.backends only those that take one: flash1, portable and tiled"),
        ("backends: flash3 flex, dropout: 0.5", "", "each of 'flash3' and 'flex' has no dropout: choose math, "),
        (f"backends: custom, {EIGHT}, tile: 64x64", "", "tiny.yaml:4:73: call.tile does not go with call.dtype float8_e4m3fn: leave one of them out"),
        (f"backends: custom, {EIGHT}", "  device: cpu\n", "tiny.yaml:4:51: call.dtype=float8_e4m3fn needs a GPU: use --set device=cuda, or bfloat16, float16 or float32"),
    ],
)  # fmt: skip
def test_a_study_of_which_no_run_can_start_is_refused_with_what_would_do(study, call, extra, text):
    with pytest.raises(InvalidFile) as error:
        lacking_calls(expand(read_study(study(extra, base=CALLS % call)), "full"))
    assert text in str(error.value)


def test_a_cell_that_cannot_start_beside_others_is_doubted_and_a_backend_beside_others_is_not(study):
    text = "matrix: {call.backends: [math, custom math]}\n"
    (line,) = warnings_of(study, text, base=CALLS % EIGHT)
    assert "tiny.yaml:5:26: warning: 'math' takes no numbers of 8 bits" in line
    assert warnings_of(study, "", base=CALLS % f"backends: custom math, {EIGHT}") == []


ON_A_CPU = "has no dropout on a CPU: choose math or tiled, or use "


def test_a_backend_that_a_cpu_alone_refuses_is_named_as_its_run_would_be(study):
    """`flash` has dropout on a GPU, so that only its own reasons say so; `math` has it everywhere."""
    matrix = "matrix: {attention: [flash, math, auto]}\n"
    lines = warnings_of(study, matrix, sets=["train.attention_dropout=0.5"])
    assert [line.partition("tiny.yaml:")[2] for line in lines] == [
        f"7:{column}: warning: '{name}' {ON_A_CPU}--set train.attention_dropout=0; or state `expect: unsupported`"
        for column, name in ((22, "flash"), (35, "auto"))
    ]
    flash, *_ = expand(read_study(study(matrix)), sets=["train.attention_dropout=0.5"])
    with pytest.raises(Unsupported, match="has no dropout on a CPU"):
        attention.require("flash", flash.config.attention_case)


@pytest.mark.parametrize(
    ("values", "advice"),
    [
        ("[0, 0.5]", "--only train.attention_dropout=0"),
        ("[0.0, 0.5]", "--only train.attention_dropout=0"),
        ("[0.25, 0.5]", "train.attention_dropout=0 in the study"),
    ],
)
def test_the_advice_for_a_factor_is_one_that_is_not_refused(study, values, advice):
    lines = warnings_of(study, f"matrix: {{attention: [flash, math], train.attention_dropout: {values}}}\n")
    assert {line.partition("warning: ")[2] for line in lines} == {
        f"'flash' {ON_A_CPU}{advice}; or state `expect: unsupported`"
    }
    if advice.startswith("--only"):
        path = study(f"matrix: {{attention: [flash, math], train.attention_dropout: {values}}}\n")
        cells = expand(read_study(path), only=[advice.removeprefix("--only ")])
        assert [cell.config.train.attention_dropout for cell in cells] == [0, 0]
        assert lacking_calls(cells) == []


def test_a_precision_that_is_a_factor_is_refused_with_advice_for_the_study(study):
    float16 = "matrix: {train.dtype: [float16, float32]}\n"
    with pytest.raises(InvalidFile, match="use train.dtype=bfloat16 in the study, or ") as error:
        expand(read_study(study(float16, base=TINY.replace(", dtype: float32", ""))))
    assert "--set train.dtype" not in str(error.value)


def test_a_training_with_dropout_by_backends_without_it_is_refused(study):
    with pytest.raises(InvalidFile, match="no run of this study can start: 'flex' has no dropout"):
        warnings_of(study, "matrix: {attention: [flex]}\n", sets=["train.attention_dropout=0.5"])
