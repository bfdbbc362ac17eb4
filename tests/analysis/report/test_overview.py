"""The table and the small figures of a report's first page: what they show, what they leave out, and why."""

from __future__ import annotations

from typing import Any

from analysis.charts import styles
from analysis.report import tasks
from analysis.report.answer import answer_study
from analysis.report.overview import Overview, OverviewColumn, PanelSpec, TableCell, estimated, overview
from analysis.stats import Estimate, over_runs
from tests.analysis.report.study import NOBODY, Row, comparison, facts, planned
from tests.analysis.verdicts.rows import DESIGN
from tests.analysis.verdicts.test_scaling import trained


def first_page(runs: list[Row], **changes: Any) -> Overview:
    """The overview of a study that trained."""
    task, study_facts, study_comparison = tasks.load("training"), facts(runs, **changes), comparison(runs)
    rows = answer_study(study_facts, study_comparison, NOBODY, [], task.answer).verdicts
    lines = task.lines(study_facts, rows)
    return overview(lines, task.columns, task.panels, {}, styles(list(lines)))


def overview_of(values: dict[str, Estimate | None]) -> Overview:
    """An overview of these values alone."""
    column = OverviewColumn("Value", lambda value: TableCell(f"{value.median:g}") if value else TableCell())
    empty = OverviewColumn("Nothing", lambda _value: TableCell())
    return overview(
        values,
        (column, empty),
        (PanelSpec("Value", "values", lambda value: value),),
        {},
        styles(list(values)),
    )


def estimate(median: float, low: float | None = None, high: float | None = None) -> Estimate:
    return Estimate(median, low, high, 3, "")


def heads(page: Overview) -> list[str]:
    return [column.head for column in page.columns]


def test_a_column_that_says_nothing_is_left_out() -> None:
    assert heads(overview_of({"a": estimate(1), "b": None})) == ["Value"]
    page = first_page([planned("cudnn", design=DESIGN | {"baseline": None})])
    assert "Against baseline" not in heads(page) and "Efficiency" not in heads(page)


def test_bars_are_as_long_as_their_values_however_far_apart_these_are() -> None:
    """0.38 GiB were drawn 80 % as long as 64.44 GiB, whose bar was cut."""
    (panel,) = overview_of({"a": estimate(0.38), "b": estimate(0.5), "math": estimate(64.44)}).panels
    assert [bar.end for bar in panel.bars] == [0.59, 0.78, 100.0]
    (panel,) = overview_of({"a": estimate(90, 80, 100), "b": estimate(95, 80, 125)}).panels
    assert [bar[4:] for bar in panel.bars] == [(72.0, 64.0, 80.0), (76.0, 64.0, 100.0)], (
        "no end is cut either"
    )


def test_in_place_of_an_interval_that_is_wider_than_its_value_is_the_range_of_the_runs_and_says_so() -> None:
    """Of runs of 18.3, 32.2 and 18.5 ms there was nothing, as if the value were certain."""
    wide = over_runs([18.3, 32.2, 18.5])
    assert wide.low and wide.high and wide.high - wide.low > wide.median
    cell = estimated(lambda group: group, "#,.3g")
    line: Any = type("Line", (), {"group": wide})
    reason = "no interval, but the range of all 3 runs, as the interval is wider than the value"
    assert cell(line) == TableCell("18.5", "range 18.3 \N{EN DASH} 32.2", reason, has_interval=True)
    (panel,) = overview_of({"a": wide, "b": estimate(18, 17, 19)}).panels
    assert panel.ranges == 1 and [(bar.end, bar.low, bar.high) for bar in panel.bars] == [
        (57.45, 56.83, 100.0), (55.9, 52.8, 59.01),
    ]  # fmt: skip


def test_an_interval_of_one_run_that_is_wider_than_its_value_says_nothing_and_is_not_drawn() -> None:
    (panel,) = overview_of(
        {"a": estimate(100, 90, 115), "b": estimate(100, 8, 1270), "c": estimate(100)}
    ).panels
    assert [bar.low is not None for bar in panel.bars] == [True, False, False]
    cell = estimated(lambda group: group, ".0f")
    line: Any = type("Line", (), {"group": estimate(100, 8, 1270)})
    assert cell(line) == TableCell("100")


def test_of_many_groups_the_smallest_and_the_largest_are_drawn_and_the_others_counted() -> None:
    page = overview_of({f"group-{n}": estimate(n) for n in range(1, 31)})
    (panel,) = page.panels
    assert [bar.label for bar in panel.bars] == [f"group-{n}" for n in (*range(1, 7), *range(25, 31))]
    assert panel.left_out == 18 and len(page.lines) == 30


def test_all_figures_of_bars_leave_out_the_same_groups() -> None:
    """Of 14 groups, that of the rates left out 2 and 5, and that of the MFU 6 and 7."""
    lines = {f"g{n}": n for n in range(1, 15)}
    specs = [
        PanelSpec("Few", "few", lambda n: estimate(n) if n < 9 else None),
        PanelSpec("Rate", "rate", estimate),
        PanelSpec("MFU", "mfu", lambda n: estimate((n * 5) % 14 + 1)),
        PanelSpec("Middle", "middle", lambda n: estimate(n) if n in (7, 8) else None),
    ]
    few, rate, mfu, middle = overview(lines, (), specs, {}, styles(list(lines))).panels
    assert [bar.label for bar in rate.bars] == [bar.label for bar in mfu.bars]
    assert {*lines} - {bar.label for bar in rate.bars} == {"g7", "g8"}
    assert [bar.label for bar in few.bars] == [f"g{n}" for n in range(1, 7)]
    assert [(panel.left_out, panel.by) for panel in (few, rate, mfu)] == [(2, "Rate"), (2, ""), (2, "Rate")]
    assert not middle.bars and middle.absent == "Only groups that these figures leave out have this."


def test_long_names_have_numbers_in_the_figures() -> None:
    assert not overview_of({"flash3": estimate(1), "cudnn": estimate(2)}).numbered
    page = overview_of({"batch_size=2, learning_rate=0.001": estimate(1), "cudnn": estimate(2)})
    assert page.numbered and [bar.place for bar in page.panels[0].bars] == [1, 2]


def test_a_reason_that_several_groups_share_is_one_note() -> None:
    unsupported = {"outcome": "unsupported", "expected_outcome": "unsupported", "steps": None}
    runs = [
        planned("auto"),
        *(planned(f"b{n}", because="its kernels need a GPU", **unsupported) for n in range(3)),
    ]
    page = first_page(runs)
    assert page.notes == {"a": "its kernels need a GPU"}
    outcomes = [cells[heads(page).index("Outcome")] for cells in page.lines.values()]
    assert [(cell.text, letter) for cell, letter in outcomes] == [
        ("completed", ""),
        *[("unsupported", "a")] * 3,
    ]


def test_an_unsupported_group_has_the_reason_of_its_backend_whatever_the_study_gave_as_one() -> None:
    unsupported = {
        "outcome": "unsupported",
        "expected_outcome": "unsupported",
        "because": "not everywhere",
        "steps": None,
    }
    page = first_page([planned("auto"), planned("flex", reason="has no dropout on a CPU", **unsupported)])
    assert page.notes == {"a": "has no dropout on a CPU"}
    oom = unsupported | {"outcome": "oom_gpu", "because": "it stores all scores"}
    page = first_page([planned("auto"), planned("math", reason="CUDA out of memory", **oom)])
    assert page.notes == {"a": "it stores all scores"}


def test_an_end_that_nobody_expected_is_marked_and_a_log_without_a_plan_has_an_unknown_one() -> None:
    page = first_page(
        [planned("auto", outcome="failed"), planned("log", imported={"format": "csv"}, planned_steps=None)]
    )
    outcome_column = heads(page).index("Outcome")
    assert [page.lines[label][outcome_column][0][:2] for label in ("auto", "log")] == [
        ("failed", "not expected"), ("unknown", ""),
    ]  # fmt: skip


def test_an_outcome_does_not_say_again_how_many_have_a_rate() -> None:
    waiting = {"outcome": None, "steps": None, "step_seconds": None, "repeat": 2}
    page = first_page([planned("auto"), planned("auto", **waiting), planned("flash", **waiting)])
    n_column, outcome_column = (heads(page).index(head) for head in ("n", "Outcome"))
    texts = {
        label: (cells[n_column][0].text, cells[outcome_column][0].text) for label, cells in page.lines.items()
    }
    assert texts == {"auto": ("1 of 2", "1 not ended"), "flash": ("0 of 1", "not ended")}


def test_a_wide_interval_of_a_difference_is_left_out_with_its_reason() -> None:
    runs = [planned("cudnn", seconds, repeat=n) for n, seconds in enumerate((0.4, 0.8), 1)]
    runs += [planned("flash", seconds, repeat=n) for n, seconds in enumerate((0.9, 0.3), 1)]
    page = first_page(runs)
    assert page.lines["flash"][heads(page).index("Against baseline")][0].small == "no telling interval, n = 2"
    assert page.lines["cudnn"][heads(page).index("Against baseline")][0].text == "baseline"


def test_a_study_of_scaling_has_its_efficiency_in_place_of_the_time() -> None:
    assert first_page([planned("one"), planned("two")]).panels[-1].title == "Training time"
    curve = [*trained(2, repeats=3), *trained(4, 0.9, repeats=3, shard=2)]
    base = planned("base")
    page = first_page([base | row for row in curve])
    assert page.panels[-1].title == "Efficiency, % of ideal"
    (_, cells) = page.lines.values()
    efficiency, _ = cells[heads(page).index("Efficiency")]
    assert (efficiency.text, efficiency.small) == ("90.0 %", "weak, 90.0 to 90.0 %")


def test_strong_and_weak_scaling_are_told_apart_at_each_value() -> None:
    """88.7 and 95.1 % stood in one column and one figure, the one of strong and the other of weak scaling."""
    curve = [*trained(4), *trained(4, 0.9, shard=2), *trained(8, 0.95, shard=2)]
    base = planned("base")
    page = first_page([base | row for row in curve])
    efficiency_column = heads(page).index("Efficiency")
    cells = [cells[efficiency_column][0] for cells in page.lines.values()]
    assert [(cell.text, cell.small.partition(",")[0]) for cell in cells[1:]] == [
        ("90.0 %", "strong"), ("95.0 %", "weak"),
    ]  # fmt: skip
    assert [bar.text for bar in page.panels[-1].bars] == ["90.0 strong", "95.0 weak"]
