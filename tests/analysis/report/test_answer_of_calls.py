"""What the answer says first of runs that time attention alone."""

from __future__ import annotations

import re
from collections import defaultdict
from pathlib import Path
from statistics import median
from types import SimpleNamespace
from typing import Any

import pytest

from analysis.report.answer.calls import sentences
from analysis.report.answer.limits import apart, of_calls
from analysis.report.answer.ran import called as sentence
from analysis.report.answer.ran import out_of_memory, without_times
from analysis.report.build import build_report
from analysis.store.collect import collect
from model.record.case import Case
from tests.analysis.charts.test_kernel_points import called
from tests.analysis.charts.test_kernels import planned as planned_run
from tests.analysis.timed import kernels


def planned(batch: int) -> dict[str, Any]:
    return {"config": {"call": {"shape": f"B{batch} T16 H2 D16", "causal": True}}}


@pytest.mark.parametrize(("rounds", "phrase"), [((1, 1), "1 round of"), ((15, 31), "15 to 31 rounds of")])
def test_rounds_are_counted(rounds: tuple[int, int], phrase: str) -> None:
    defaults: defaultdict[str, Any] = defaultdict(lambda: None, outcome="completed")
    runs = [
        defaults | planned(batch) | {"run_id": f"r{batch}", "planned_steps": steps}
        for batch, steps in enumerate(rounds, 1)
    ]
    times = [
        {"run_id": run["run_id"], "outcome": "completed", "attention": name}
        for run in runs
        for name in ("math", "cudnn")
    ]
    text = sentence(SimpleNamespace(runs=runs, calls=True, kernels=times)).text  # type: ignore[arg-type]
    assert "at 2 shapes, forward and backward, in " + phrase + " all backends." in text


def test_masks_are_no_shapes() -> None:
    defaults: defaultdict[str, Any] = defaultdict(lambda: None, outcome="completed", planned_steps=31)
    runs = [
        defaults | {"run_id": str(causal), "config": {"call": {"shape": "B1 T16 H2 D16", "causal": causal}}}
        for causal in (True, False)
    ]
    facts = SimpleNamespace(runs=runs, calls=True, kernels=[])
    assert " at 1 shape, 2 cases of shape and mask, forward" in sentence(facts).text  # type: ignore[arg-type]


def test_what_is_beyond_a_shape_makes_it_several_cases_wherever_they_are_counted() -> None:
    causal = timed(512, cudnn=[*STEADY], auto=[2.0] * 9)
    rows = [*causal, *(row | {"causal": not row["causal"]} for row in causal)]
    case_sentence = texts_of(rows)[-1]
    assert case_sentence.startswith("Over 2 cases, the fastest is `cudnn` at 2 ")


def test_what_ran_out_of_memory_in_some_calls_alone_was_timed() -> None:
    ends = [("r1", "graph", "oom_gpu"), ("r1", "eager", "completed"), ("r2", "graph", "oom_gpu")]
    ends += [("r2", "eager", "oom_gpu"), ("r3", "graph", "completed")]
    names = ("run_id", "mode", "outcome")
    times = [dict(zip(names, end, strict=True)) | {"attention": "math"} for end in ends]
    texts = [part.text for part in out_of_memory(SimpleNamespace(kernels=times))]  # type: ignore[arg-type]
    assert texts == [
        "`math` ran out of memory in 1 run and was not timed there, and ended as `oom_gpu` in some of its "
        "calls in 1 more."
    ]
    (statement,) = out_of_memory(SimpleNamespace(kernels=times[:2]))  # type: ignore[arg-type]
    assert statement.text == "`math` ended as `oom_gpu` in some of its calls in 1 run."


@pytest.mark.parametrize(
    ("outcomes", "phrase"),
    [
        (("completed", "cancelled"), "was timed at 1 of 2 shapes"),
        (("cancelled", "cancelled"), "was to be timed at 2 shapes"),
        (("completed", "without times"), "was timed at 1 of 2 shapes"),
    ],
)
def test_only_shapes_that_have_a_time_are_called_timed(outcomes: tuple[str, str], phrase: str) -> None:
    defaults: defaultdict[str, Any] = defaultdict(lambda: None, planned_steps=15)
    ends = ["completed" if outcome == "without times" else outcome for outcome in outcomes]
    runs = [
        defaults | planned(batch) | {"run_id": f"r{batch}", "outcome": end, "expected_outcome": end}
        for batch, end in enumerate(ends, 1)
    ]
    times = [
        run | {"attention": "math"}
        for run, outcome in zip(runs, outcomes, strict=True)
        if outcome == "completed"
    ]
    study_facts = SimpleNamespace(runs=runs, calls=True, kernels=times, in_logs={"error": []}, removed={})
    assert phrase in sentence(study_facts).text  # type: ignore[arg-type]
    texts = [statement.text for statement in without_times(study_facts)]  # type: ignore[arg-type]
    expected = ["1 completed run has no times: its `kernels.json` is missing or holds none."]
    assert texts == (expected if "without times" in outcomes else [])


def test_a_report_of_one_backend_compares_it_with_no_other(tmp_path: Path) -> None:
    case = Case("cuda", "bfloat16", 1, 512, 16, 16, 128)
    folder = planned_run(tmp_path, "r1", case)
    folder.start(flop_per_token=None, parameter_count=None)
    kernels(folder, case, custom=1.0, flash3="unsupported")
    folder.end(steps=7, final_loss=None)
    collect(tmp_path)
    page = build_report(tmp_path, "kernels", tmp_path / "report").read_text(encoding="utf-8")
    text = " ".join(re.sub(r"<[^>]+>", " ", page).split())
    assert "at 1 shape, forward and backward, in 7 rounds." in text
    assert "a forward and its backward take 3.50 ms with custom ." in text
    for words in ("astest", "all backends", "the others", "Speed over"):
        assert words not in text


STEADY = (1.0, 1.01, 1.02, 1.03, 1.04, 1.05, 1.06, 1.07, 1.08)  # how the clock slows, round by round


def timed(length: int, **times: list[float]) -> list[dict[str, Any]]:
    """Backends at a shape, by the milliseconds of their calls in the same rounds."""
    return [
        row
        | {
            "seconds": [duration / 1e3 for duration in durations],
            "milliseconds": median(durations),
            "calls": len(durations),
        }
        for name, durations in times.items()
        for row in called(name, 1.0, length)
    ]


def texts_of(rows: list[dict[str, Any]]) -> list[str]:
    return [statement.text for statement in sentences(SimpleNamespace(kernels=rows, eight_bits=[]))]  # type: ignore[arg-type]


def test_what_another_precision_contradicts_is_not_left_out() -> None:
    """The answer led with float16 alone, though in float32 the other backend was the fastest."""
    float16_rows = [row | {"dtype": "float16"} for row in timed(512, flash1=[*STEADY], math=[2.0] * 9)]
    float32_rows = [row | {"dtype": "float32"} for row in timed(512, flash1=[3.0] * 9, math=[2.0] * 9)]
    fastest, contradiction, case_sentence = texts_of([*float16_rows, *float32_rows])
    assert "float16, in CUDA graphs, `flash1` is the fastest" in fastest
    assert contradiction == (
        "At the same sizes, `math` is the fastest in float32, by +50.00 % (+50.00 to +50.00 %) over `flash1`."
    )
    assert case_sentence == (
        "Over 2 cases, the fastest is `flash1` at 1 (1 in float16, +92 % over the next) and `math` at 1 (1 in "
        "float32, +50 % over the next)."
    )
    assert (
        len(texts_of([*float16_rows, *(row | {"dtype": "float32"} for row in float16_rows)])) == 2
    )  # which agree


def test_the_fastest_is_the_one_that_is_ahead_round_by_round() -> None:
    """Half a percent apart, where the clock changes all times by eight: unpaired intervals overlap."""
    slow = [1.005 * duration for duration in STEADY]
    rows = [
        row for length in (512, 1024) for row in timed(length, cudnn=[*STEADY], auto=slow, math=[9.0] * 9)
    ]
    fastest, case_sentence = texts_of(rows)
    assert fastest.endswith(
        "`cudnn` is the fastest, by +0.50 % (+0.50 to +0.50 %) over `auto`: a forward and its backward "
        "take 1.04 ms with `cudnn` and 9.00 ms with `math`, the slowest of 3 backends."
    )
    assert case_sentence == "Over 2 shapes, the fastest is `cudnn` at 2 (+0.5 % over the next)."


def test_a_smaller_median_does_not_make_a_backend_that_is_behind_in_nearly_all_rounds_the_fastest() -> None:
    ahead = [0.999 * duration for duration in STEADY]
    ahead[4] = 2.0
    assert median(ahead) > median(STEADY)
    fastest, *_ = texts_of(timed(512, cudnn=[*STEADY], auto=ahead))
    assert "`auto` is the fastest, by +0.10 % (" in fastest


def test_the_range_of_rounds_without_an_interval_is_called_one() -> None:
    """Over 40 rounds `auto` becomes ever slower beside `cudnn`: rounds that no interval allows for."""
    ramp = [1.5 + number / 100 for number in range(40)]
    (statement,) = sentences(SimpleNamespace(kernels=timed(512, cudnn=[1.0] * 40, auto=ramp), eight_bits=[]))  # type: ignore[arg-type]
    assert "`cudnn` is the fastest, by +69 % (range +50 to +89 %) over `auto`" in statement.text
    assert [number.is_range for number in statement.numbers] == [False, False, True]


def test_where_the_rounds_do_not_agree_none_is_the_fastest() -> None:
    alternating = [duration * (1.01 if number % 2 else 0.99) for number, duration in enumerate(STEADY)]
    rows = timed(512, cudnn=[*STEADY], auto=alternating) + timed(1024, cudnn=[*STEADY], auto=[2.0] * 9)
    fastest, case_sentence = texts_of(rows)
    assert "`auto`" in fastest
    assert case_sentence == (
        "Over 2 shapes, the fastest is `cudnn` at 1 (+92 % over the next); at 1, none is told from the next."
    )
    fastest, case_sentence = texts_of(
        timed(512, cudnn=[*STEADY], auto=alternating) + timed(1024, cudnn=[*STEADY], auto=alternating)
    )
    assert "; `auto` is not told from `cudnn`: +1.0 % (-1.0 to +1.0 %)." in fastest
    assert case_sentence == "At none of 2 shapes is one backend told from the next."


def test_the_one_that_it_is_not_told_from_is_named_and_not_the_next_from_which_it_is() -> None:
    """Of nine rounds an interval ends at the second: `flash` is ahead in two of them."""
    math = [1.35 * duration for duration in STEADY]
    flash = [duration * (0.9 if number in (2, 5) else 3) for number, duration in enumerate(STEADY)]
    fastest, *_ = texts_of(timed(512, cudnn=[*STEADY], math=math, flash=flash))
    assert fastest.endswith("; `cudnn` is not told from `flash`: +200 % (-10 to +200 %).")


def test_one_that_is_ahead_of_all_others_is_the_fastest_though_these_were_called_apart() -> None:
    """The table prints its ratio in bold. Of two that no process called nothing is said."""
    rows: list[dict[str, Any]] = []
    for run in range(6):
        competitor = {"math" if run % 2 else "tiled": [3.0] * 9}
        rows += [row | {"run_id": f"r{run}"} for row in timed(512, flash=[*STEADY], **competitor)]
    (text,) = texts_of(rows)
    assert "`flash` is the fastest, by +188.46 % (" in text
    (text,) = texts_of([row for row in rows if row["attention"] != "flash"])
    assert "fastest" not in text and "told" not in text
    limits = (statement.text for statement in of_calls(SimpleNamespace(runs=[], kernels=rows), None, []))  # type: ignore[arg-type]
    expected = (
        "At 1 shape, not all backends were called in one process: two that no process called have no ratio."
    )
    assert expected in limits
    assert apart(SimpleNamespace(kernels=timed(512, flash=[1.0], math=[2.0]))) == []  # type: ignore[arg-type]


def test_fewer_rounds_than_an_interval_needs_name_no_fastest() -> None:
    (text,) = texts_of(timed(512, cudnn=[1.0] * 5, auto=[2.0] * 5))
    assert text.endswith("`cudnn` is not told from `auto`: +100 %, without an interval.")


def test_records_without_the_times_of_rounds_name_no_fastest() -> None:
    """Reports of earlier versions carry medians alone."""
    rows = timed(512, cudnn=[1.0] * 9, auto=[2.0] * 9) + timed(1024, cudnn=[1.0] * 9, auto=[2.0] * 9)
    (text,) = texts_of([row | {"seconds": None} for row in rows])
    assert text.endswith("a forward and its backward take 1.00 ms with `cudnn` and 2.00 ms with `auto`.")


def test_times_of_a_second_and_more_are_in_seconds() -> None:
    rows = [row for name, time in (("cudnn", 1000.0), ("auto", 1001.0)) for row in called(name, time, 512)]
    assert "take 3.5 s with `cudnn` and 3.5 s with `auto`" in texts_of(rows)[0]
    rows = [row for name, time in (("cudnn", 285.7), ("auto", 571429.0)) for row in called(name, time, 512)]
    assert "take 1 s with `cudnn` and 2,000 s with `auto`" in texts_of(rows)[0]


def shaped(
    name: str, factor: float, tile: tuple[int, int] | None = None, dropout: float = 0.0
) -> list[dict[str, Any]]:
    """A backend in the rounds of a run of its own, that many times as slow; both take 3.5 times a forward."""
    rows = timed(512, **{name: [factor * duration for duration in STEADY]})
    queries, keys = tile or (None, None)
    fields = {"tile_queries": queries, "tile_keys": keys, "dropout": dropout, "run_id": f"{tile}, {dropout}"}
    return [
        row
        | fields
        | {"milliseconds_low": 0.98 * row["milliseconds"], "milliseconds_high": 1.02 * row["milliseconds"]}
        for row in rows
    ]


def test_of_tiles_the_fastest_stands_beside_the_slowest_for_three_backends() -> None:
    slower = {(64, 16): 4.0, (64, 64): 1.5, (128, 64): 1.0}
    backends = {"flash1": 1.0, "portable": 2.0, "tiled": 3.0, "custom": 5.0}
    rows = [
        row
        for tile, factor in slower.items()
        for name, slowdown in backends.items()
        for row in shaped(name, slowdown * (factor if name != "portable" else 1.0), tile)
    ]
    (by_tile, *_) = sentences(SimpleNamespace(kernels=rows, eight_bits=[]))  # type: ignore[arg-type]
    assert by_tile.text == (
        "A forward and its backward over tiles of queries x keys, at batch 4, sequence length 512, heads 8, "
        "head dim 64, causal, bfloat16, a GPU, in CUDA graphs: "
        "`flash1` has its shortest time, 1.04 ms, in 128 x 64, 4.00 times (3.89 to 4.11) as fast as in 64 x 16, "
        "the slowest of 3; "
        "`portable` has its shortest time, 2.08 ms, in 64 x 16, 1.00 times (0.97 to 1.03: not told apart) as fast "
        "as in 128 x 64, the slowest of 3; "
        "`tiled` has its shortest time, 3.12 ms, in 128 x 64, 4.00 times (3.89 to 4.11) as fast as in 64 x 16, "
        "the slowest of 3; the tables have 1 more backend."
    )
    assert [number.value for number in by_tile.numbers] == pytest.approx([4.0, 1.0, 4.0])


def test_the_time_with_dropout_stands_beside_that_without_where_a_backend_has_both() -> None:
    rows = [
        *shaped("flash", 1.0),
        *shaped("flash", 1.25, dropout=0.125),
        *shaped("cudnn", 1.0),
        *shaped("cudnn", 1.01, dropout=0.125),
        *shaped("math", 1.0),
    ]
    (by_dropout, *_) = sentences(SimpleNamespace(kernels=rows, eight_bits=[]))  # type: ignore[arg-type]
    assert by_dropout.text == (
        "At batch 4, sequence length 512, heads 8, head dim 64, dropout 0.125, causal, bfloat16, in CUDA graphs, "
        "the time of a forward and its backward is 1.01 times (0.98 to 1.04: not told apart) that without with "
        "`cudnn`; 1.25 times (1.22 to 1.29) that without with `flash`."
    )
    assert [number.value for number in by_dropout.numbers] == pytest.approx([1.01, 1.25])


def test_without_a_tile_or_dropout_nothing_is_said_of_them() -> None:
    assert not any(word in text for text in texts_of(shaped("flash", 1.0)) for word in ("tile", "dropout"))
    assert not any("without" in text for text in texts_of(shaped("flash", 1.0, dropout=0.125)))
