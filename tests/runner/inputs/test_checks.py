"""A study that can hardly mean what it says is warned of at the line."""

import re

import pytest

from runner.commands.init import STUDY
from runner.inputs.checks import doubts
from runner.inputs.expansion import expand
from runner.inputs.study import read_study
from tests.conftest import REPOSITORY, TINY

WARM = TINY.replace("warmup_steps: 0, ", "")


@pytest.mark.parametrize(
    ("base", "extra", "sets", "place", "says"),
    [
        (WARM, "", [], "tiny.yaml:6:11", "warm-up of 100 steps (the default) does not end within 6 steps"),
        (WARM, "matrix: {train.warmup_steps: [5, 6]}\n", [], "tiny.yaml:7:34", "of 6 steps does not end"),
        (TINY, "rules: [{where: {seed: 0}, set: {train.warmup_steps: 9}}]\nmatrix: {seed: [0]}\n", [], "tiny.yaml:7:34", "below 6"),
        (TINY, "", ["train.warmup_steps=6"], "--set train.warmup_steps=6", "below 6"),
        ("title: t\nbase: {data.path: a}\n", "scales: {full: {set: {train.steps: 100}}}\n", [], "tiny.yaml:3:23", "below 100"),
    ],
)  # fmt: skip
def test_a_warm_up_that_never_ends_is_doubted_at_its_line(study, base, extra, sets, place, says):
    (doubt,) = doubts(expand(read_study(study(extra, base=base)), sets=sets))
    assert str(doubt).startswith(f"{place}: warning: ") or f"/{place}: warning: " in str(doubt)
    assert says in str(doubt)


@pytest.mark.parametrize("steps", [101, 1000])
def test_a_warm_up_that_ends_is_not_doubted(study, steps):
    assert doubts(expand(read_study(study("", base=WARM)), sets=[f"train.steps={steps}"])) == []


def test_a_shape_that_nobody_chose_is_doubted(study):
    base = "title: t\nbase: {task: attention, device: cpu, call: {dtype: float32}}\n"
    (doubt,) = doubts(expand(read_study(study("", base=base))))
    assert "without call.shape, attention is timed at B1 T4096 H32 K8 D128" in str(doubt)
    chosen = "matrix: {call.shape: [B1 T64 H2 D16, B2 T64 H2 D16]}\n"
    assert doubts(expand(read_study(study(chosen, base=base)))) == []


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
            told = {doubt.text.partition(" (valid: ")[0] for doubt in doubts(expand(study, scale))}
            # Whoever reports the numbers of 001 names a generation of GPUs, and no card.
            told.discard("note: not held to a peak: none is known of 'one NVIDIA Hopper GPU' in bfloat16")
            assert told == set(), f"{path} at scale {scale}"
