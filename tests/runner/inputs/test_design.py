"""Repeats, order, baseline, margins and `until`: what a study may say of them, and the cells that follow."""

from math import log
from statistics import fmean

import jsonschema
import pytest

from runner.inputs.document import InvalidFile
from runner.inputs.expansion import expand
from runner.inputs.schema import json_schema
from runner.inputs.study import read_study

TWO = "matrix: {attention: [auto, tiled], seed: [0, 1]}\n"
WHOLE = (
    TWO + "repeats: 3\norder: random\nbaseline: {attention: auto}\n"
    "margins: {loss: 0.005, tokens_per_second: 1%}\nuntil: {tokens_per_second: 0.5 %, at_most: 12}\n"
)


def cells(study, extra, scale="full", **options):
    return expand(read_study(study(extra)), scale, **options)


def started(expanded):
    """The cells' factors and repeats, in the order of starting."""
    return [
        (*cell.factors.values(), cell.repeat) for cell in sorted(expanded, key=lambda cell: cell.position)
    ]


def test_repeats_run_the_identical_configuration_in_the_same_group_under_ids_of_their_own(study):
    once, thrice = cells(study, TWO), cells(study, TWO + "repeats: 3\n")
    assert [cell.repeat for cell in thrice] == [1] * 4 + [2] * 4 + [3] * 4
    assert [cell.run_id for cell in thrice[:4]] == [cell.run_id for cell in once], "those of before"
    assert len({cell.run_id for cell in thrice}) == 12
    assert [cell.config for cell in thrice] == [cell.config for cell in once] * 3
    assert [cell.group for cell in thrice] == [cell.group for cell in once] * 3


def test_repeats_can_be_picked_as_seeds_can(study):
    expanded = cells(study, TWO + "repeats: 3\n", only=["repeat=2,3", "seed=1"])
    assert sorted(started(expanded)) == [("auto", 1, 2), ("auto", 1, 3), ("tiled", 1, 2), ("tiled", 1, 3)]


def test_an_interleaved_block_is_one_repetition_of_every_group(study):
    expanded = cells(study, "matrix: {attention: [auto, tiled, flash], seed: [0, 1]}\nrepeats: 2\n")
    blocks = {}
    for cell in sorted(expanded, key=lambda cell: cell.position):
        blocks.setdefault(cell.block, []).append(cell)
    assert list(blocks) == [1, 2, 3, 4]
    assert all(
        {cell.config.attention for cell in block} == {"auto", "tiled", "flash"} for block in blocks.values()
    )
    assert [{(cell.config.seed, cell.repeat) for cell in block} for block in blocks.values()] == [
        {(0, 1)}, {(1, 1)}, {(0, 2)}, {(1, 2)},
    ]  # fmt: skip


def test_groups_are_shuffled_differently_in_each_block_and_alike_in_each_launch(study):
    extra = "matrix: {attention: [auto, tiled, flash], seed: [0]}\nrepeats: 30\n"
    order = started(cells(study, extra))
    blocks = [tuple(start[0] for start in order[n : n + 3]) for n in range(0, 90, 3)]
    assert len(set(blocks)) == 6, "every order of three groups comes about in thirty blocks"
    assert order == started(cells(study, extra))
    without = started(cells(study, extra, only=["attention=auto,flash"]))
    assert without == [start for start in order if start[0] != "tiled"], "leaving runs out reorders no others"


def test_groups_whose_seeds_differ_still_share_blocks(study):
    expanded = cells(study, "zip: [{train.learning_rate: [1e-3, 2e-3], seed: [0, 1]}]\nrepeats: 2\n")
    assert [cell.block for cell in expanded] == [1, 1, 2, 2]


def test_other_orders_have_no_blocks(study):
    random = cells(study, TWO + "repeats: 4\norder: random\n")
    assert started(random) != started(cells(study, TWO + "repeats: 4\n"))
    written = cells(study, TWO + "repeats: 2\norder: as written\n")
    assert [cell.position for cell in written] == list(range(1, 9))
    assert {cell.block for cell in random + written} == {None}


def test_a_drift_of_the_machine_falls_on_all_groups_alike(study):
    """A machine that slows down by 3 % a run, and a learning rate, which cannot change the speed."""
    extra = "matrix: {train.learning_rate: [1e-3, 3e-3], seed: [0, 1, 2, 3, 4, 5]}\n"

    def effect(order):
        seconds = {}
        for cell in cells(study, extra + order):
            seconds.setdefault(cell.group, []).append(1 + 0.03 * cell.position)
        first, second = seconds.values()
        return fmean(log(a / b) for a, b in zip(first, second, strict=True))

    assert abs(effect("order: as written\n")) > 0.15
    assert abs(effect("")) < 0.03


def test_a_run_records_its_design(study):
    record = read_study(study(WHOLE)).design("full").record("tiny")
    assert record.model_dump() == {
        "order": "random",
        "order_seed": record.order_seed,
        "baseline": {"attention": "auto"},
        "margins": {"loss": 0.005, "tokens_per_second": 0.01},
        "until": {"tokens_per_second": 0.005, "at_most": 12},
    }
    assert isinstance(record.order_seed, int)


def test_a_scale_overrides_the_design(study):
    extra = (
        TWO
        + "baseline: {attention: tiled}\nrepeats: 3\nscales: {small: {repeats: 1, baseline: {attention: auto}}}\n"
    )
    read = read_study(study(extra))
    assert (read.design("small").repeats, read.design("small").baseline) == (1, {"attention": "auto"})
    assert (len(expand(read)), len(expand(read, "small"))) == (12, 4)


def test_the_schema_knows_the_keys():
    schema = json_schema("study")
    good = {"title": "t", "repeats": 2, "order": "as written", "baseline": {"seed": 0},
            "margins": {"loss": 0.1, "tokens_per_second": "1%"}, "until": {"tokens_per_second": "1 %", "at_most": 3}}  # fmt: skip
    jsonschema.validate(good, schema)
    for bad in (
        {"repeats": 0},
        {"order": "shuffled"},
        {"margins": {"tokens_per_second": 0.01}},
        {"until": {}},
    ):
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate(good | bad, schema)


@pytest.mark.refused
@pytest.mark.parametrize(
    ("extra", "place", "message"),
    [
        ("repeat: 3\n", "8:1", "unknown key 'repeat' (did you mean 'repeats'?"),
        ("repeats: 0\n", "8:1", "'repeats' must be greater than or equal to 1, got 0"),
        ("repeats: 1001\n", "8:1", "less than or equal to 1000"),
        ("repeats: true\n", "8:1", "'repeats' must be a whole number, got true"),
        ("repeats: 2.0\n", "8:1", "must be a whole number: write 2"),
        ("order: shuffled\n", "8:1", "must be 'interleaved', 'random' or 'as written', got 'shuffled'"),
        ("margins: {los: 0.1}\n", "8:11", "unknown key 'los' (did you mean 'loss'?"),
        ("margins: {loss: -0.1}\n", "8:11", "'loss' must be greater than 0, got -0.1"),
        ("margins: {loss: 1%}\n", "8:11", "'loss' must be a number, got '1%'"),
        ("margins: {tokens_per_second: -1%}\n", "8:11", "such as 1% or 0.5%, got '-1%'"),
        ("margins: {tokens_per_second: 0%}\n", "8:11", "a percentage above 0 and below 100"),
        ("margins: {tokens_per_second: 0.01}\n", "8:11", "such as 1% or 0.5%, got '0.01'"),
        ("baseline: {attention: flash}\n", "8:12", "the values of attention are 'auto', 'tiled'"),
        ("baseline: {atention: auto}\n", "8:12", "not a factor of this study (did you mean 'attention'?"),
        ("baseline: {train.steps: 6}\n", "8:12", "'train.steps' is not a factor of this study"),
        ("baseline: {seed: 0}\n", "8:12", "leave out `seed`"),
        ("baseline: {}\n", "8:1", "must have at least 1 item"),
        ("baseline: auto\n", "8:1", "'baseline' must have keys and values of its own"),
        ("baseline: {attention: [auto, tiled]}\n", "8:12", "can only take values that are text"),
        (
            "baseline: {attention: auto}\nrules: [{where: {attention: auto}, expect: oom_host}]\n",
            "8:1",
            "the baseline's runs are expected to end as oom_host: name a baseline that completes",
        ),
        ("until: {tokens_per_second: 1%, at_most: 4}\n", "8:1", "`baseline: {FACTOR: VALUE}`"),
        ("baseline: {attention: auto}\nuntil: {tokens_per_second: 1%}\n", "9:1", "missing key 'at_most'"),
        ("baseline: {attention: auto}\nuntil: {loss: 1%, at_most: 4}\n", "9:9", "unknown key 'loss'"),
        ("baseline: {attention: auto}\nuntil: {tokens_per_second: 1%, at_most: 2}\n", "9:1", "3 or more"),
        (
            "repeats: 5\nbaseline: {attention: auto}\nuntil: {tokens_per_second: 1%, at_most: 4}\n",
            "10:32",
            "'at_most' 4 is less than repeats, which is 5",
        ),
        (
            "baseline: {attention: auto}\nuntil: {tokens_per_second: 1%, at_most: 4}\n"
            "scales: {small: {repeats: 5}}\n",
            "9:32",
            "'at_most' 4 is less than repeats, which is 5",
        ),
    ],
)  # fmt: skip
def test_a_design_that_cannot_be_meant_is_refused_at_its_place(study, extra, place, message):
    with pytest.raises(InvalidFile) as error:
        cells(study, TWO + extra)
    assert f"tiny.yaml:{place}: " in str(error.value)
    assert message in str(error.value)


@pytest.mark.refused
def test_a_baseline_that_leaves_nothing_to_compare_is_refused(study):
    with pytest.raises(InvalidFile, match=r"tiny\.yaml:8:1: every cell is the baseline.*factor that varies"):
        cells(study, "matrix: {attention: [auto], seed: [0, 1]}\nbaseline: {attention: auto}\n")


@pytest.mark.refused
def test_a_scale_whose_baseline_cannot_run_is_named(study):
    extra = TWO + (
        "baseline: {attention: tiled}\nscales:\n  small:\n"
        "    rules: [{where: {attention: tiled}, expect: unsupported}]\n"
    )
    assert cells(study, extra)
    with pytest.raises(
        InvalidFile, match=r"tiny\.yaml:8:1: .* name a baseline that completes at scale small"
    ):
        cells(study, extra, "small")


@pytest.mark.refused
def test_more_repeats_than_cells_may_be_are_refused(study):
    extra = f"matrix: {{seed: [{', '.join(map(str, range(200)))}]}}\nrepeats: 1000\n"
    with pytest.raises(InvalidFile, match="200 cells, 1000 times each; the limit is 100,000"):
        cells(study, extra)


@pytest.mark.refused
def test_a_repeat_that_is_not_there_is_refused(study):
    from model.record.errors import UserError

    with pytest.raises(UserError, match=r"no cell has repeat = '4' \(valid: 1, 2, 3\)"):
        cells(study, TWO + "repeats: 3\n", only=["repeat=4"])
    with pytest.raises(UserError, match="'repeat' is not a factor of this study"):
        cells(study, TWO, only=["repeat=1"])
