"""`reported:` in a study: numbers of other people, which runs they belong to, and what is refused."""

import jsonschema
import pytest

from runner.inputs.checks import doubts, reported_elsewhere
from runner.inputs.document import InvalidFile
from runner.inputs.expansion import expand
from runner.inputs.schema import json_schema
from runner.inputs.study import read_study
from tests.conftest import TINY

TWO = "matrix: {attention: [auto, tiled], seed: [0, 1]}\n"
FROM = "hardware: NVIDIA GH200 120GB, source: 'their paper, table 1', read_from: table"


def cells(study, extra, scale="full", **options):
    return expand(read_study(study(extra)), scale, **options)


def problem(study, entry, extra=""):
    with pytest.raises(InvalidFile) as error:
        cells(study, f"{TWO}{extra}reported:\n  - {{{entry}}}\n")
    return str(error.value).splitlines()[0].rpartition("/")[2]


def test_numbers_belong_to_the_runs_that_their_where_picks_and_keep_the_digits_that_were_printed(study):
    expanded = cells(
        study,
        f"{TWO}reported:\n"
        f"  - {{where: {{attention: tiled}}, tokens_per_second: 7893.10, mfu: 41, {FROM}}}\n"
        f"  - {{where: {{attention: [auto, tiled]}}, final_loss: 6.690, note: by eye, {FROM}}}\n",
    )
    numbers = {
        (cell.config.attention, cell.config.seed): [dict(entry.numbers) for entry in cell.reported]
        for cell in expanded
    }
    tiled, both = {"tokens_per_second": "7893.10", "mfu": "41"}, {"final_loss": "6.690"}
    assert numbers == {
        ("auto", 0): [both],
        ("auto", 1): [both],
        ("tiled", 0): [tiled, both],
        ("tiled", 1): [tiled, both],
    }
    entries = expanded[-1].reported
    assert [(entry.hardware, entry.gpus, entry.read_from, entry.note) for entry in entries] == [
        ("NVIDIA GH200 120GB", 1, "table", ""),
        ("NVIDIA GH200 120GB", 1, "table", "by eye"),
    ]


def test_numbers_change_no_id(study):
    with_them = cells(study, f"{TWO}reported:\n  - {{mfu: 41, {FROM}}}\n")
    assert [cell.run_id for cell in with_them] == [cell.run_id for cell in cells(study, TWO)]
    assert all(cell.reported for cell in with_them), "without `where`, every group"


def test_numbers_may_be_about_cells_of_another_scale(study):
    scaled = f"reported:\n  - {{where: {{attention: tiled}}, mfu: 41, {FROM}}}\nscales:\n  laptop:\n"
    scaled += "    matrix: {attention: [auto]}\n"
    assert [bool(cell.reported) for cell in cells(study, TWO + scaled, "laptop")] == [False, False]
    assert sum(bool(cell.reported) for cell in cells(study, TWO + scaled)) == 2
    read = read_study(study(TWO + scaled))
    assert (reported_elsewhere(read, "laptop"), reported_elsewhere(read, "full")) == ([1], [])


@pytest.mark.parametrize(
    ("entry", "text"),
    [
        (f"where: {{attention: flash}}, mfu: 41, {FROM}", "tiny.yaml:9:14: matches no cell: the values of attention are 'auto', 'tiled', got 'flash'"),
        (f"where: {{attention: [tiled, flash]}}, mfu: 41, {FROM}", "tiny.yaml:9:33: the values of attention are 'auto', 'tiled', got 'flash'"),
        (f"where: {{atention: tiled}}, mfu: 41, {FROM}", "tiny.yaml:9:14: 'atention' is not a factor of this study (did you mean 'attention'? valid: attention, seed)"),
        (f"where: {{seed: 1}}, mfu: 41, {FROM}", "tiny.yaml:9:14: seeds are not groups, and reported numbers are of a whole group"),
        (f"where: {{attention: tiled}}, {FROM}", "tiny.yaml:9:5: no number is reported; give one or more of tokens_per_second, mfu, "),
        (f"mfu: 41, tokens_per_sec: 4, {FROM}", "tiny.yaml:9:15: unknown key 'tokens_per_sec' (did you mean 'tokens_per_second'?"),
        (f"mfu: fast, {FROM}", "tiny.yaml:9:6: 'mfu' must be a number, got 'fast'"),
        (f"mfu: -1, {FROM}", "tiny.yaml:9:6: 'mfu' must be greater than 0, got -1"),
        (f"mfu: 41, {FROM.replace('read_from: table', 'read_from: guess')}", "'read_from' must be 'table', 'plot' or 'text', got 'guess'"),
        ("mfu: 41, hardware: NVIDIA L4, read_from: table", "missing key 'source'"),
        (f"prefill_milliseconds: 141.08, {FROM}", "tiny.yaml:9:6: runs of task training do not measure 'prefill_milliseconds' (valid: tokens_per_second, "),
    ],
)  # fmt: skip
def test_what_is_wrong_is_said_with_its_place_and_the_valid_choices(study, entry, text):
    assert text in problem(study, entry)


CALLS = """title: Calls
base: {task: attention, device: cpu, call: {backends: math tiled}}
matrix: {call.shape: [B1 T128 H2 D16, B1 T256 H2 D16]}
"""


def test_of_attention_alone_they_name_the_backend_and_where_picks_the_shape(study):
    entry = f"  - {{where: {{call.shape: B1 T256 H2 D16}}, backend: tiled, both_milliseconds: 90, {FROM}}}\n"
    one, other = expand(read_study(study(f"reported:\n{entry}", base=CALLS)), "full")
    assert one.reported == ()
    ((report,),) = (other.reported,)
    assert (report.backend, dict(report.numbers)) == ("tiled", {"both_milliseconds": "90"})


@pytest.mark.parametrize(
    ("entry", "text"),
    [
        ("tflops: 600", "runs of task attention do not measure 'tflops' (valid: forward_milliseconds, "),
        ("both_tflops: 9", "tiny.yaml:5:5: a run of task attention calls several backends: name one with `backend: NAME`"),
        ("backend: tilde, both_tflops: 9", "tiny.yaml:5:6: unknown attention backend 'tilde' (did you mean 'tiled'?"),
    ],
)  # fmt: skip
def test_what_is_wrong_with_numbers_of_attention_alone_is_said(study, entry, text):
    with pytest.raises(InvalidFile) as error:
        expand(read_study(study(f"reported:\n  - {{{entry}, {FROM}}}\n", base=CALLS)), "full")
    assert text in str(error.value)


def test_a_backend_of_other_tasks_stands_in_where(study):
    text = problem(study, f"backend: tiled, mfu: 41, {FROM}")
    assert text.endswith("`backend` is of task attention: name it in `where: {attention: ...}`")


def test_editors_know_the_key(study):
    schema = json_schema("study")
    entry = {
        "where": {"attention": "tiled"},
        "mfu": 41.5,
        "hardware": "L4",
        "source": "s",
        "read_from": "plot",
    }
    jsonschema.validate({"title": "t", "reported": [entry]}, schema)
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate({"title": "t", "reported": [entry | {"read_from": "guess"}]}, schema)


def test_a_number_that_breaks_a_rule_is_doubted_at_its_place_and_still_accepted(study):
    wrong, right = (f"where: {{attention: tiled}}, mfu: {mfu}, {FROM}" for mfu in ("413", "41.3"))
    (doubt,) = doubts(cells(study, f"{TWO}reported:\n  - {{{wrong}}}\n"))
    assert (
        str(doubt)
        .rpartition("/")[2]
        .startswith("tiny.yaml:9:5: warning: mfu is 413 %, and at most 100 % can be")
    )
    assert doubts(cells(study, f"{TWO}reported:\n  - {{{right}}}\n")) == []


@pytest.mark.parametrize(
    ("hardware", "text"),
    [
        ("H100 SMX", "none is known of 'H100 SMX' in float32 (did you mean 'H100 SXM'? valid: B200, H200, "),
        ("L4 (32GB)", "none is known of 'L4 (32GB)' in float32 (valid: B200, H200, "),
    ],
)  # fmt: skip
def test_a_rate_of_hardware_without_a_peak_is_said_to_be_held_to_none(study, hardware, text):
    entry = f"tflops: 40, hardware: {hardware}, source: a paper, read_from: table"
    (note,) = doubts(cells(study, f"{TWO}reported:\n  - {{{entry}}}\n"))
    assert str(note).rpartition("/")[2].startswith(f"tiny.yaml:9:5: note: not held to a peak: {text}")


def test_entries_that_disagree_are_doubted_each_at_its_place(study):
    one, other = (f"{{where: {{attention: tiled}}, mfu: {mfu}, {FROM}}}" for mfu in ("41.3", "21.3"))
    warnings = doubts(cells(study, f"{TWO}reported:\n  - {one}\n  - {other}\n"))
    assert [str(doubt).rpartition("/")[2].partition(" here")[0] for doubt in warnings] == [
        "tiny.yaml:9:5: warning: mfu is 41.3",
        "tiny.yaml:10:5: warning: mfu is 21.3",
    ]


def test_a_precision_that_a_card_has_no_peak_in_is_said_with_those_that_it_has(study):
    entry = "forward_tflops: 40, backend: math, hardware: T4, source: a paper, read_from: table"
    base = "title: t\nbase: {task: attention, call: {backends: math, shape: B1 T128 H2 D16}}\n"
    (note,) = doubts(expand(read_study(study(f"reported:\n  - {{{entry}}}\n", base=base)), "full"))
    assert (
        note.text == "note: not held to a peak: none is known of 'T4' in bfloat16 (valid: float16, float32)"
    )


@pytest.mark.parametrize(
    ("base", "key", "suggestion"),
    [
        (CALLS, "backend: math, forward_ms", "forward_milliseconds"),
        (CALLS, "backend: math, backward_gflops", "backward_tflops"),
        (CALLS, "backend: math, memory_gb", "call_memory_bytes"),
        (TINY, "peak_memory_gb", "peak_memory_bytes"),
        (TINY, "tokens_per_sec", "tokens_per_second"),
        (TINY, "forward_ms", None),  # no quantity of a training is near
    ],
)
def test_a_key_that_is_none_has_the_nearest_of_those_that_the_task_measures(study, base, key, suggestion):
    with pytest.raises(InvalidFile) as error:
        read_study(study(f"reported:\n  - {{{key}: 4, {FROM}}}\n", base=base))
    message = str(error.value)
    hint = f"did you mean '{suggestion}'? " if suggestion else ""
    assert f"unknown key '{key.split()[-1]}' ({hint}valid: " in message
    assert ("forward_milliseconds" in message) == (base is CALLS)


def test_numbers_of_a_backend_that_the_runs_do_not_call_are_doubted_at_their_place(study):
    entry = f"  - {{backend: flash, both_milliseconds: 90, {FROM}}}\n"
    expanded = expand(read_study(study(f"reported:\n{entry}", base=CALLS)), "full")
    lines = [str(doubt).rpartition("/")[2].splitlines()[0] for doubt in doubts(expanded)]
    text = (
        "tiny.yaml:5:5: warning: these runs do not call 'flash' (they call math, tiled): pages have no number"
    )
    assert len([line for line in lines if line.startswith(text)]) == 1


def test_what_takes_longer_or_needs_more_than_the_baseline_saves_a_negative_share(study):
    entry = f"{TWO}reported:\n  - {{where: {{attention: tiled}}, time_saved_percentage: -4.20, {FROM}}}\n"
    numbers = [dict(report.numbers) for cell in cells(study, entry) for report in cell.reported]
    assert numbers == [{"time_saved_percentage": "-4.20"}] * 2
    assert "'final_loss' must be greater than 0" in problem(study, f"final_loss: -4.2, {FROM}")
