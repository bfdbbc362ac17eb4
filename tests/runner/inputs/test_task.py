"""A study names the task of its runs, and settings of other tasks are refused, as they would have no effect."""

import pytest

from model.record import backends
from model.record.config import TASKS, RunConfig
from runner.inputs.document import InvalidFile
from runner.inputs.expansion import expand
from runner.inputs.study import read_study

pytestmark = pytest.mark.refused
HEAD = "title: t\nbase: {data: {path: text.parquet}}\n"


def test_training_is_the_default_and_a_run_that_says_so_is_the_same_run(study):
    (silent,) = expand(read_study(study("")))
    (stated,) = expand(read_study(study("")), sets=["task=training"])
    assert silent.run_id == stated.run_id
    assert "task" not in silent.config.model_dump(), "so that older code can read the record"


def test_a_run_of_training_keeps_the_id_that_it_had_before_there_were_tasks(tmp_path):
    path = tmp_path / "s.yaml"
    path.write_text(HEAD + "repeats: 2\n")
    assert [cell.run_id for cell in expand(read_study(path))] == ["67c02631b8bb", "38498df870b8"]


def test_a_factor_may_be_the_task(study):
    (cell,) = expand(read_study(study("matrix: {task: [training]}\n")))
    assert cell.factors == {"task": "training"}


def test_an_unknown_task_is_refused_with_the_choices(tmp_path):
    path = tmp_path / "s.yaml"
    path.write_text(HEAD + "matrix: {task: [dreaming]}\n")
    with pytest.raises(InvalidFile, match=r"s.yaml:3:17: unknown task 'dreaming' \(.*valid: training"):
        expand(read_study(path))


def test_a_setting_that_the_task_does_not_read_is_refused_in_its_place(tmp_path, monkeypatch):
    monkeypatch.setattr(TASKS["training"], "reads", ("data",))
    path = tmp_path / "s.yaml"
    path.write_text(HEAD + "matrix: {model.dim: [64]}\n")
    with pytest.raises(
        InvalidFile,
        match=r"s.yaml:3:22: 'model.dim' has no effect on task training, whose sections are train, data",
    ):
        expand(read_study(path))


def test_a_task_that_reads_text_needs_some(tmp_path):
    path = tmp_path / "s.yaml"
    path.write_text("title: t\n")
    with pytest.raises(InvalidFile, match="`base` lacks data.path"):
        expand(read_study(path))
    with pytest.raises(ValueError, match=r"lacks data\.path"):
        RunConfig()


CALLS = "title: t\nbase: {task: attention}\n"


def calls(tmp_path, more):
    path = tmp_path / "s.yaml"
    path.write_text(CALLS + more)
    return expand(read_study(path))


def test_attention_alone_reads_neither_text_nor_model_and_its_record_has_neither(tmp_path):
    (cell,) = calls(tmp_path, "matrix: {call.shape: [B2 T64 H4 D16]}\n")
    assert set(cell.config.model_dump()) == {"task", "seed", "device", "call"}
    case = cell.config.attention_case
    assert (case.batch, case.sequence_length, case.heads, case.kv_heads, case.head_dim) == (2, 64, 4, 4, 16)
    assert RunConfig.model_validate_json(cell.config.model_dump_json()) == cell.config


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (
            "matrix: {attention: [math]}",
            r"s.yaml:3:22: 'attention' has no effect on task attention, which reads call.backends",
        ),
        (
            "matrix: {train.steps: [3]}",
            r"3:24: 'train.steps' has no effect on task attention, whose sections are call; it belongs to `task: training`",
        ),
        ("matrix: {call.backends: [' ']}", r"3:26: 'call.backends' names no .* \(valid: all, auto, "),
        ("matrix: {call.backends: [math fast]}", r"3:26: unknown attention backend 'fast'"),
        ("matrix: {call.backends: [math all]}", r"3:26: backends 'math all' names `all`, which stands alone"),
        ("matrix: {call.shape: [T4 B2]}", r"shape 'T4 B2' must look like B2 T4096 H32 K8 D128"),
        ("matrix: {call.shape: [B0 T4 H1 D8]}", r"must look like"),
        ("matrix: {call.tile: [64, 128x64]}", r"3:22: 'call.tile' must be text"),
        (
            "matrix: {call.tile: [128 x 64]}",
            r"3:22: tile '128 x 64' must look like 128x64: whole numbers from 1",
        ),
        ("matrix: {call.tile: [64x0]}", r"must look like 128x64"),
        ("matrix: {call.shape: [B1 T4 H1 D7]}", r"3:23: shape 'B1 T4 H1 D7' has an odd head dim"),
        ("matrix: {call.backends: ['math,flash']}", r"unknown .*; put spaces between names"),
        (
            "matrix: {call.shape: [B01 T4 H1 D8]}",
            r"in this order: whole numbers from 1, a space between them",
        ),
        (
            "matrix: {call.shape: [B1 T4 H4 D8, B1 T4 H4 K4 D8]}",
            r"3:36: the same run as an earlier cell: call.shape B1 T4 H4 K4 D8; remove one",
        ),
        (
            "matrix: {call.shape: [B1 T4 H4 K3 D8]}",
            r"has heads \(H\) that are not a multiple of its key heads \(K\)",
        ),
    ],
    ids=[
        "attention",
        "train",
        "no backend",
        "backend",
        "all and one",
        "order",
        "zero",
        "a number",
        "spaces",
        "no keys",
        "odd",
        "comma",
        "digits",
        "twins",
        "groups",
    ],
)
def test_settings_without_effect_and_shapes_that_are_none_are_refused(tmp_path, more, message):
    with pytest.raises(InvalidFile, match=message):
        calls(tmp_path, more + "\n")


def test_a_run_that_counts_bytes_is_another_one_and_others_keep_their_ids(tmp_path):
    own, counting = calls(tmp_path, "include: [{call: {causal: true}}, {call: {traffic: true}}]\n")
    assert (own.config.call.traffic, counting.config.call.traffic) == (False, True)
    assert "traffic" not in own.config.identity()["call"] and counting.config.identity()["call"]["traffic"]
    assert own.run_id != counting.run_id


def test_a_tile_is_in_the_case_and_a_run_without_one_keeps_its_id(tmp_path):
    own, chosen = calls(tmp_path, "include: [{call: {causal: true}}, {call: {tile: 128x64}}]\n")
    assert (own.config.attention_case.tile, chosen.config.attention_case.tile) == (None, (128, 64))
    assert "tile" not in own.config.identity()["call"]
    assert own.run_id != chosen.run_id
    assert RunConfig.model_validate_json(chosen.config.model_dump_json()) == chosen.config


def test_backends_are_all_or_those_that_are_named(tmp_path):
    (every,) = calls(tmp_path, "")
    assert set(every.config.backends) == set(backends.names())
    (cell,) = calls(tmp_path, "matrix: {call.backends: [math  flash]}\n")
    assert list(cell.config.backends) == ["math", "flash"]


def cells(study, text):
    return expand(read_study(study(text)))


@pytest.mark.parametrize(
    ("text", "place", "wrong"),
    [
        (
            "matrix: {inference.prompt_length: [8]}\n",
            "inference.prompt_length",
            "training, whose sections are train",
        ),
        (
            "matrix: {task: [inference]}\n",
            "train.steps",
            "inference, whose sections are inference, model, data",
        ),
    ],
)
def test_a_setting_of_another_task_is_refused(study, text, place, wrong):
    with pytest.raises(InvalidFile, match=rf"\.yaml:\d+:\d+: '{place}' has no effect on task {wrong}"):
        cells(study, text)


INFERENCE = "title: t\nbase: {task: inference, device: cpu, data: {path: text.parquet}%s}\n"


def test_a_run_of_inference_has_an_id_of_its_own_settings_alone(tmp_path):
    path = tmp_path / "s.yaml"
    path.write_text(INFERENCE % "")
    (cell,) = expand(read_study(path))
    assert set(cell.config.identity()) == {
        "attention",
        "seed",
        "device",
        "task",
        "inference",
        "model",
        "data",
    }


def test_one_study_has_one_task(tmp_path):
    path = tmp_path / "s.yaml"
    path.write_text("title: t\nbase: {data: {path: text.parquet}}\nmatrix: {task: [training, inference]}\n")
    with pytest.raises(InvalidFile, match=r"s\.yaml:3:27: a study has one task"):
        expand(read_study(path))
    (cell,) = expand(read_study(path), only=["task=inference"])
    assert cell.config.task == "inference"


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (
            ", inference: {steps: 5}",
            "inference.warmup_steps 10 leaves none of the 5 steps to measure: set it below inference.steps",
        ),
        (", data.mode: pad", r"--set data\.mode=pack"),
        (", inference: {new_tokens: -1}", "'inference.new_tokens' must be greater than or equal to 0"),
        (", inference: {log_every: 1}", "unknown setting 'inference.log_every'"),
    ],
)
def test_what_inference_cannot_do_is_refused(tmp_path, more, message):
    path = tmp_path / "s.yaml"
    path.write_text(INFERENCE % more)
    with pytest.raises(InvalidFile, match=message):
        expand(read_study(path))


@pytest.mark.parametrize("task", ["[inference]", "{a: 1}", "3"])
def test_a_task_of_another_type_is_refused(tmp_path, task):
    path = tmp_path / "s.yaml"
    path.write_text(f"title: t\nbase: {{task: {task}, call.steps: 3}}\n")
    with pytest.raises(InvalidFile, match=r"s\.yaml:2:\d+: .*task"):
        expand(read_study(path))


def test_a_margin_of_a_loss_that_no_run_has_is_refused(tmp_path):
    path = tmp_path / "s.yaml"
    more = "matrix: {attention: [auto, math]}\nbaseline: {attention: auto}\n"
    path.write_text(INFERENCE % "" + more + "margins: {loss: 0.02, tokens_per_second: 1%}\n")
    with pytest.raises(InvalidFile, match=r"s\.yaml:5:11: runs of task inference have no loss"):
        expand(read_study(path))
    path.write_text(INFERENCE % "" + more + "margins: {tokens_per_second: 1%}\n")
    assert len(expand(read_study(path))) == 2


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("baseline", "{call.causal: true}"),
        ("margins", "{tokens_per_second: 1%}"),
        ("until", "{tokens_per_second: 1%, at_most: 3}"),
    ],
)
def test_attention_alone_takes_no_key_that_compares_runs(tmp_path, key, value):
    more = "matrix: {call.causal: [true, false]}\n"
    base = "" if key == "baseline" else "baseline: {call.causal: true}\n"
    place = 4 + bool(base)
    with pytest.raises(InvalidFile, match=rf"s\.yaml:{place}:1: '{key}' has no effect on task attention"):
        calls(tmp_path, f"{more}{base}{key}: {value}\n")


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("baseline", "{attention: math}"),
        ("margins", "{tokens_per_second: 1%}"),
        ("until", "{tokens_per_second: 1%, at_most: 3}"),
    ],
)
def test_a_frontier_takes_no_key_that_compares_rates_but_may_be_repeated(tmp_path, key, value):
    """It has no rate: `until` would search again and again, up to its last repeat."""
    path = tmp_path / "s.yaml"
    study = "title: t\nbase: {task: frontier}\nmatrix: {attention: [math, flash]}\nrepeats: 2\n"
    base = "" if key == "baseline" else "baseline: {attention: math}\n"
    path.write_text(f"{study}{base}{key}: {value}\n")
    place = 5 + bool(base)
    message = rf"s\.yaml:{place}:1: '{key}' has no effect on task frontier: its runs have no rate to compare"
    with pytest.raises(InvalidFile, match=message):
        expand(read_study(path))
    path.write_text(study)
    assert len(expand(read_study(path))) == 4


@pytest.mark.parametrize(
    ("key", "suggestion"),
    [
        ("call.backend", "call.backends"),
        ("inference.sequence_length", "inference.prompt_length"),
        ("train.lr", "train.learning_rate"),
    ],
)
def test_a_misspelt_setting_is_taken_for_one_of_its_own_task(tmp_path, key, suggestion):
    path = tmp_path / "s.yaml"
    path.write_text(f"title: t\nbase: {{{key}: 3}}\n")
    with pytest.raises(
        InvalidFile, match=rf"s\.yaml:2:8: unknown setting '{key}' \(did you mean '{suggestion}'"
    ):
        read_study(path)


@pytest.mark.parametrize(
    ("task", "key", "suggestion"),
    [
        ("inference", "steps", "inference.steps"),
        ("inference", "train.step", "inference.steps"),
        ("inference", "sequence_length", "inference.prompt_length"),
        ("attention", "backend", "call.backends"),
        ("training", "length", "train.sequence_length"),
    ],
)
def test_a_misspelt_setting_is_taken_for_one_that_the_task_of_the_study_reads(
    tmp_path, task, key, suggestion
):
    path = tmp_path / "s.yaml"
    base = f"task: {task}, data.path: text.parquet" if task == "inference" else f"task: {task}"
    path.write_text(f"title: t\nbase: {{{base}, {key}: 3}}\n")
    answer = rf"unknown setting '{key}' \(did you mean '{suggestion}'\?"
    with pytest.raises(InvalidFile, match=answer) as in_file:
        read_study(path)
    path.write_text(f"title: t\nmatrix: {{task: [{task}]}}\n")
    with pytest.raises(InvalidFile, match=answer) as in_option:
        expand(read_study(path), sets=[f"{key}=3"])
    for error in (in_file, in_option):
        assert ("train.steps" in str(error.value)) == (task == "training"), "lists what the task reads alone"


def test_a_frontier_of_one_probe_is_refused_as_nothing_bounds_it(study):
    base = "title: t\nbase: {task: frontier, frontier: {steps: 1}}\n"
    with pytest.raises(InvalidFile) as error:
        expand(read_study(study("", base=base)))
    assert (
        "tiny.yaml:2:35: frontier.steps=1 is one probe, and what fits ends between two: use 2 or more"
        in str(error.value)
    )
    assert len(expand(read_study(study("", base=base.replace("steps: 1", "steps: 2"))))) == 1
