"""Groups are matched, and what changed in each gets a verdict."""

from __future__ import annotations

import math
from datetime import timedelta
from typing import Any

import pytest

from analysis.verdicts.comparison import CompareOptions, compare
from analysis.verdicts.match import changed_settings, match, settings_of
from analysis.verdicts.sections import sections, summary
from analysis.verdicts.source import Measured, Records
from analysis.wording import sentence
from model.record.errors import UserError
from tests.analysis.verdicts.compared_rows import NOON, row

STEPS = range(20, 101, 2)
MARGINS = {"tokens_per_second": 0.02, "loss": 0.005}
NOISE = (0.9996, 1.0, 1.0005)  # of three runs


def run(seed: int, attention: str = "auto", seconds: float = 0.4, **changes: Any) -> dict[str, Any]:
    config = row()["config"] | {"attention": attention, "seed": seed} | changes.pop("config", {})
    return row(
        run_id=f"{attention}{seed}",
        seed=seed,
        label=attention,
        attention=attention,
        factors={"attention": attention, "seed": seed},
        config=config,
        step_seconds=seconds * NOISE[seed % 3],
        peak_memory_bytes=70 * 2**30,
        expected_outcome="completed",
        created_at=NOON,
        **changes,
    )


def side(name: str, rows: list[dict[str, Any]], loss: float = 0.0) -> Measured:
    """Records whose seconds and losses vary with the step, as those of all runs do; ended as no other side's."""
    rows = [row | {"ended_at": row["ended_at"] + timedelta(microseconds=ord(name[-1]))} for row in rows]
    records = {
        row["run_id"]: Records(
            {step: 10 - step / 100 + loss for step in STEPS},
            {step: (row["step_seconds"] or 1) * (1 + step % 7 / 100) for step in STEPS},
        )
        for row in rows
    }
    return Measured(name, rows, records)


def only(a: Measured, b: Measured, **options: Any):
    (result,) = compare(a, b, CompareOptions(**({"margins": MARGINS} | options))).results
    return result


def test_equal_runs_are_equivalent_and_nothing_is_a_regression() -> None:
    a, b = ([run(seed) for seed in range(3)] for _ in "ab")
    result = only(side("A", a), side("B", b))
    assert (result.speed.kind, result.loss.kind) == ("equivalent", "equivalent")
    assert result.regressions == result.unsettled == []


def test_a_copy_of_the_same_runs_is_no_second_sample() -> None:
    source = side("first", [run(seed) for seed in range(3)])
    with pytest.raises(UserError, match="before/first and first hold the same runs, .*: they are one sample"):
        compare(source._replace(name="before/first"), source, CompareOptions(margins=MARGINS))


def test_runs_that_are_on_both_sides_withhold_the_verdict_even_if_all_differences_are_meant() -> None:
    first = side("first", [run(seed) for seed in range(3)])
    before = side("before", [run(seed) for seed in range(3)])
    before = before._replace(runs=[first.runs[0], *before.runs[1:]])
    result = only(before, first, across=["all"])
    assert (result.speed.kind, result.loss.kind) == ("withheld", "withheld")
    assert "1 of the 3 runs of first is also in before, attempt by attempt" in sentence(result.speed)


def test_slower_runs_are_a_regression_and_faster_ones_are_not() -> None:
    a, b = side("A", [run(n) for n in range(3)]), side("B", [run(n, seconds=0.44) for n in range(3)])
    (regression,) = only(a, b).regressions
    assert "speed: Rate -9.09 %" in regression
    assert only(b, a).regressions == []
    assert only(b, a).speed.kind == "different"


@pytest.mark.parametrize("loss", [0.1, -0.1])
def test_another_loss_is_a_regression_whichever_way(loss: float) -> None:
    rows = [run(seed) for seed in range(3)]
    result = only(side("A", rows), side("B", rows, loss))
    assert result.loss.difference == pytest.approx(loss)
    assert [regression.partition(":")[0] for regression in result.regressions] == ["loss"]


def test_the_speed_of_single_runs_is_observed_unless_it_is_to_be_tested() -> None:
    a, b = side("A", [run(0)]), side("B", [run(0, seconds=0.44)])
    result = only(a, b)
    assert result.speed.kind == "observed"
    assert result.speed.low is not None
    assert result.speed.level == "records of one run each"
    assert result.regressions == []
    assert only(a, b, single_runs=True).speed.kind == "different"
    assert "of these two runs alone" in only(a, b, single_runs=True).regressions[0]


def test_two_programs_that_look_alike_in_one_run_each_are_inconclusive_as_on_the_pages_of_a_study() -> None:
    """The interval of the records' ratio reaches 1: nothing is said to have been observed."""
    a, b = side("A", [run(0)]), side("B", [run(0)])
    wavering = {step: a.records["auto0"].seconds[step] * (1 + 0.01 * math.sin(7 * step)) for step in STEPS}
    b = b._replace(records={"auto0": Records(b.records["auto0"].losses, wavering)})
    speed = only(a, b).speed
    assert speed.low < 0 < speed.high
    assert speed.kind == "inconclusive"
    assert "inconclusive, which says nothing about other runs" in sentence(speed)
    tables = {part.name: part.rows for part in sections(compare(a, b, CompareOptions()))}
    assert "observed" not in str(tables)
    assert tables["verdicts"][0][1:] == [
        "speed",
        "inconclusive",
        "in one run each: the interval includes equality",
    ]


def test_the_range_of_all_records_is_called_so() -> None:
    """Where a run's steps only get slower, no interval can be made of them."""
    a, b = side("A", [run(0)]), side("B", [run(0)])
    growing = {step: a.records["auto0"].seconds[step] * (1 + step / 10) for step in STEPS}
    b = b._replace(records={"auto0": Records(b.records["auto0"].losses, growing)})
    (table,) = (part for part in sections(compare(a, b, CompareOptions())) if part.name == "results")
    assert "(range -" in " ".join(table.rows[0])


def test_without_a_margin_nothing_is_established() -> None:
    a, b = ([run(n, seconds=seconds) for n in range(3)] for seconds in (0.4, 0.8))
    result = only(side("A", a), side("B", b, 1.0), margins={})
    assert (result.speed.kind, result.loss.kind) == ("inconclusive", "inconclusive")
    assert (
        sentence(result.speed)
        == "Rate -50.00 % (-50.00 to -50.00 %): not tested, because no margin was stated."
    )
    assert result.regressions == []


def test_the_summary_names_the_groups_that_are_not_settled() -> None:
    labels = [f"g{number}" for number in range(9)]
    sides = [[run(0, label) for label in labels] for _ in "ab"]
    short, long = (
        compare(
            *(side(name, rows[:count]) for name, rows in zip("AB", sides, strict=True)),
            CompareOptions(margins=MARGINS),
        )
        for count in (2, 9)
    )
    assert summary(short).endswith("not settled: 4 (g0; g1)")
    assert summary(long).endswith("not settled: 18 (g0; g1; g2; g3; g4; g5; 3 more groups)")


def test_the_table_rounds_no_end_of_an_interval_onto_the_margin() -> None:
    a, b = ([run(seed, seconds=entry) for seed in range(3)] for entry in (0.4, 0.404075))
    comparison = compare(side("A", a), side("B", b), CompareOptions(margins={"tokens_per_second": 0.0100857}))
    (table,) = (entry for entry in sections(comparison) if entry.name == "results")
    (cell,) = (cell for cell in table.rows[0] if "%" in cell)
    assert "-1.01 %" not in cell


def test_the_studies_margins_are_the_default_and_the_first_study_s_come_first() -> None:
    designs = [{"design": {"margins": {"tokens_per_second": margin, "loss": 1.0}}} for margin in (0.5, 0.001)]
    a, b = ([run(n, seconds=0.4 + 0.04 * index, **designs[index]) for n in range(3)] for index in (0, 1))
    comparison = compare(side("A", a), side("B", b), CompareOptions(margins={"loss": 0.005}))
    assert comparison.options.margins == {"tokens_per_second": 0.5, "loss": 0.005}
    assert comparison.results[0].speed.kind == "equivalent"


def test_a_margin_that_a_later_launch_widened_reaches_no_earlier_run() -> None:
    designs = [{"margins": {"tokens_per_second": margin}} for margin in (0.02, 0.02, 0.5)]
    runs_of_b = [run(n, seconds=0.44, design=design) for n, design in enumerate(designs)]
    comparison = compare(side("A", [run(n) for n in range(3)]), side("B", runs_of_b), CompareOptions())
    assert comparison.options.margins == {"tokens_per_second": 0.02}
    assert len(comparison.regressions) == 1


def test_a_difference_that_breaks_the_comparison_withholds_the_verdict_unless_it_is_meant() -> None:
    a, b = ([run(n, seconds=s, node=node) for n in range(3)] for s, node in ((0.4, "n1"), (0.8, "n2")))
    sides = side("A", a), side("B", b)
    result = only(*sides)
    assert result.speed.kind == "withheld"
    assert "A ran on n1, B on n2" in sentence(result.speed)
    assert result.regressions == []
    assert len(result.unsettled) == 1
    assert only(*sides, across=["host"]).speed.kind == "different"
    assert only(*sides, across=["all"]).speed.kind == "different"


def test_other_code_withholds_nothing_because_studies_are_compared_for_it() -> None:
    a, b = ([run(n, code=code * 64, git_sha=code * 40) for n in range(3)] for code in "ab")
    result = only(side("A", a), side("B", b))
    assert result.speed.kind == result.loss.kind == "equivalent"
    assert result.guard[0].topic == "commit"


@pytest.mark.parametrize(
    ("outcome", "expected", "worse"),
    [
        ("oom_gpu", "completed", ("oom_gpu",)),
        ("diverged", "completed", ("diverged",)),
        ("oom_gpu", "oom_gpu", ()),
        ("node_failed", "completed", ()),
        (None, "completed", ()),
    ],
)
def test_an_outcome_is_worse_if_it_is_bad_unexpected_and_new(outcome, expected, worse) -> None:
    failed = run(0, outcome=outcome) | {"expected_outcome": expected, "step_seconds": None}
    result = only(side("A", [run(0)]), side("B", [failed]))
    assert result.outcomes.worse == worse
    assert len(result.regressions) == len(worse)
    assert result.speed is None
    assert only(side("A", [failed]), side("B", [failed])).outcomes.worse == ()


def test_a_group_that_completes_on_no_side_leaves_nothing_unsettled() -> None:
    ended = side("A", [run(0, outcome="oom_gpu") | {"expected_outcome": "oom_gpu"}])
    assert only(ended, ended).unsettled == []
    assert len(only(side("A", [run(0)]), ended).unsettled) == 2


def test_another_setting_is_shown_and_withholds_what_it_changes() -> None:
    trained = row()["config"]["train"]
    rate, batch = ({"train": trained | change} for change in ({"learning_rate": 1e-3}, {"batch_size": 8}))
    a = side("A", [run(n) for n in range(3)])
    for config, name, kinds in (
        (rate, "train.learning_rate", ("equivalent", "withheld")),
        (batch, "train.batch_size", ("withheld", "withheld")),
    ):
        result = only(a, side("B", [run(n, config=config) for n in range(3)]))
        assert [setting.name for setting in result.settings] == [name]
        assert (result.speed.kind, result.loss.kind) == kinds
    result = only(a, side("B", [run(n, config=batch) for n in range(3)]), across=["train.batch_size"])
    assert (result.speed.kind, result.loss.kind) == ("equivalent", "equivalent")


def test_the_seed_and_where_the_text_lies_are_no_settings() -> None:
    run_of_a, run_of_b = run(0), run(1, config={"data": {"path": "elsewhere.parquet"}})
    assert settings_of(run_of_a) == settings_of(run_of_b)


def test_a_run_that_is_alone_is_known_to_have_one_process_along_each_axis() -> None:
    single, sharded = run(0), run(0)
    axes = {"replicate": 1, "shard": 4, "context": 1, "tensor": 1}
    sharded["config"] = sharded["config"] | {"parallel": axes}
    (setting,) = changed_settings(single, sharded)
    assert (setting.name, setting.a, setting.b, setting.breaks) == ("parallel.shard", 1, 4, {"speed"})
    assert changed_settings(single, single) == changed_settings(sharded, sharded) == []
    gathered = sharded | {"config": sharded["config"] | {"parallel": {**axes, "reshard": False}}}
    (setting,) = changed_settings(sharded, gathered)
    assert (setting.name, setting.a, setting.b, setting.breaks) == (
        "parallel.reshard",
        True,
        False,
        {"speed"},
    )
    imported = changed_settings(single | {"imported": {"file": "x.log"}}, sharded)
    assert [setting_change.a for setting_change in imported] == [None] * 4


def test_groups_are_matched_by_name_then_configuration_then_factors() -> None:
    config = {"train": {"warmup_steps": 10, "steps": 200}}
    a = [run(0, "auto"), run(0, "flash"), run(0, "flash3"), run(0, "math")]
    b = [run(0, "auto"), run(0, "flash", config=config), run(0, "fa3"), run(0, "flex")]
    matches = match(a, b, ["flash3=fa3"])
    assert [pair.label for pair in matches.pairs] == ["auto", "flash", "flash3 = fa3"]
    assert [group.label for group in matches.a_alone] == ["math"]
    assert [group.label for group in matches.b_alone] == ["flex"]


def test_factors_that_only_one_study_varies_do_not_match_two_groups_with_one() -> None:
    rates = [
        run(0, config={"train": {"learning_rate": rate}})
        | {"label": f"rate={rate}", "factors": {"attention": "auto", "rate": rate}}
        for rate in (1, 2)
    ]
    assert match([run(0)], rates).pairs == []
    (pair,) = match([run(0)], rates, ["auto=rate=2"]).pairs
    assert pair.label == "auto = rate=2"


def test_imported_groups_of_other_names_are_not_taken_for_equal_because_their_settings_are_unknown() -> None:
    unknown = {"config": {}, "imported": {"format": "lsai"}, "attention": None}
    logs = [
        run(0, label) | unknown | {"label": label, "factors": {"log": label}} for label in ("one", "other")
    ]
    assert match(logs[:1], logs[1:]).pairs == []
    assert len(match(logs[:1], logs[:1]).pairs) == 1


@pytest.mark.refused
def test_names_that_fit_no_group_are_refused_with_those_that_would() -> None:
    rows = [run(0, "flash3")]
    with pytest.raises(UserError, match=r"no group 'flsh3' \(did you mean 'flash3'"):
        match(rows, rows, ["flsh3=flash3"])
    with pytest.raises(UserError, match="no group 'fa3'"):
        match(rows, rows, ["flash3=fa3"])
    with pytest.raises(UserError, match="expected LABEL=LABEL"):
        match(rows, rows, ["flash3"])


@pytest.mark.refused
def test_sources_without_a_common_group_are_refused_with_what_differs() -> None:
    with pytest.raises(UserError, match="auto and flash differ in attention") as error:
        compare(side("A", [run(0, "auto")]), side("B", [run(0, "flash")]), CompareOptions())
    assert "--match 'auto=flash'" in str(error.value)


@pytest.mark.refused
def test_a_run_of_one_process_differs_from_one_of_several_in_the_axes_that_they_share_alone() -> None:
    """The record of a run of one process states no axis."""
    single, sharded = run(0), run(0)
    sharded["config"] = sharded["config"] | {"parallel": {"replicate": 1, "shard": 4, "context": 1}}
    single["factors"], sharded["factors"] = {"seed": 0}, {"seed": 0, "parallel.shard": 4}
    sharded["attention"] = "other"
    with pytest.raises(UserError, match=r"differ in attention, parallel\.shard\. Say"):
        compare(side("A", [single]), side("B", [sharded]), CompareOptions())


def test_repeats_of_a_seed_are_one_pair_of_losses_and_give_the_noise_floor() -> None:
    a, b = ([run(0) | {"run_id": f"r{n}", "repeat": n} for n in repeats] for repeats in ((1, 2), (3, 4)))
    result = only(side("A", a), side("B", b))
    assert result.loss.n == 1
    assert "Two repeats differ by 0 nats" in sentence(result.loss)
    assert "unpaired" in result.speed.method


def test_runs_without_a_seed_are_not_paired_with_each_other() -> None:
    a, b = ([run(n) | {"seed": None, "run_id": f"{name}{n}"} for n in range(3)] for name in "ab")
    assert "unpaired" in only(side("A", a), side("B", b)).speed.method


@pytest.mark.fault
def test_no_run_is_lost_where_several_share_seed_and_repeat() -> None:
    """Logs of other programs that name one seed for all: repeats that nobody numbered."""
    a, b = ([run(0) | {"run_id": f"{name}{n}"} for n in range(3)] for name in "ab")
    speed = only(side("A", a), side("B", b)).speed
    assert (speed.kind, speed.n) == ("equivalent", 3)
    assert "unpaired, 3 and 3 runs" in speed.method
    assert only(side("A", a), side("B", b[:1])).speed.kind == "inconclusive"


@pytest.mark.refused
@pytest.mark.parametrize(
    ("tasks", "reason"),
    [
        (("training", "inference"), "A has runs of task training"),
        (("attention", "attention"), "table `kernels`"),
    ],
)
def test_runs_of_different_tasks_and_attention_alone_are_refused(tasks: tuple[str, str], reason: str) -> None:
    a, b = ([run(seed, task=task) for seed in range(3)] for task in tasks)
    with pytest.raises(UserError, match=reason):
        compare(side("A", a), side("B", b), CompareOptions(margins=MARGINS))


def test_inference_lacks_no_loss() -> None:
    a, b = (
        Measured(name, rows, {row["run_id"]: Records() for row in rows})
        for name, attempts in (("A", 1), ("B", 2))
        for rows in [[run(seed, task="inference", attempts=attempts) for seed in range(3)]]
    )
    result = only(a, b)
    assert result.loss is None
    assert result.unsettled == []


def test_a_rate_of_pairs_is_called_so_beside_the_medians_that_it_is_no_ratio_of() -> None:
    """Pairs of 2, 2 and 1 times as fast: 1.59 on average, and the medians are equal."""
    before, after = [0.2, 0.4, 0.4], [0.1, 0.2, 0.4]
    comparison = compare(
        side("A", [run(seed, seconds=value) for seed, value in enumerate(before)]),
        side("B", [run(seed, seconds=value) for seed, value in enumerate(after)]),
        CompareOptions(margins={"tokens_per_second": 0.01, "loss": 0.1}),
    )
    (table,) = (section for section in sections(comparison) if section.name == "results")
    row = dict(zip(table.columns, table.rows[0], strict=True))
    assert row["median s/step"] == "0.4 -> 0.2"
    assert row["rate, paired"].startswith("+58.7")


def test_verdicts_that_groups_share_are_explained_once() -> None:
    """Two groups, each without a margin: one line says why, for both."""
    a, b = (
        side(name, [run(seed, attention) for attention in ("auto", "flash") for seed in range(3)])
        for name in ("A", "B")
    )
    comparison = compare(a, b, CompareOptions())
    (table,) = (section for section in sections(comparison) if section.name == "verdicts")
    assert ["all", "speed", "inconclusive", "not tested: no margin was stated"] in table.rows
