"""What a report says of the GPUs that a study ran on."""

from __future__ import annotations

from typing import Any

from analysis.report.answer.limits import of_any
from analysis.verdicts.conditions import gpus_of
from tests.analysis.report.study import comparison, facts
from tests.analysis.verdicts.rows import Row, run

NOISE = (0.0, 0.001, -0.001, 0.0005)


def spread(label: str, slower: float, gpus: str = "abab", **changes: Any) -> list[Row]:
    """Repeats on GPUs by letter; on `b` steps take longer by that share."""
    return [
        run(label, 0.4 * (1 + error + slower * (gpu == "b")), repeat=n, gpu_uuid=gpu, **changes)
        for n, (gpu, error) in enumerate(zip(gpus, NOISE, strict=True), start=1)
    ]


def sentence_of(rows: list[Row]) -> str:
    gpus = gpus_of(rows)
    return gpus.sentence if gpus else ""


def test_gpus_that_differ_are_a_limit_with_test_and_interval() -> None:
    rows = spread("cudnn", 0.02) + spread("flash", 0.02, "baba")
    text = sentence_of(rows)
    assert text.startswith("The 2 GPUs differ: steps took 2 % longer on the slowest than on the fastest (1")
    assert "F test, p < 0.0001" in text
    assert "Pairs of runs on different GPUs include this difference, which widens the intervals" in text
    assert text in [limit.text for limit in of_any(facts(rows), comparison(rows), [])]


def test_gpus_that_do_not_differ_are_no_limit() -> None:
    gpus = gpus_of(spread("cudnn", 0.0) + spread("flash", 0.0, "baba"))
    assert gpus
    assert not gpus.is_limit
    assert gpus.sentence.startswith("No difference between the 2 GPUs was found: steps took ")


def test_a_group_with_more_runs_on_the_faster_gpu_is_said_to_be_ahead_by_that_alone() -> None:
    even = sentence_of(spread("cudnn", 0.02) + spread("flash", 0.02, "baba"))
    assert "it favours no group, as all were spread evenly over the GPUs." in even
    uneven = sentence_of(
        spread("cudnn", 0.02, "abab") + spread("flash", 0.02, "aaab") + spread("slow", 0.02, "bbba")
    )
    assert "alone puts `flash` 1 % ahead of `slow`." in uneven


def test_pairs_on_one_gpu_are_said_to_cancel_it() -> None:
    text = sentence_of(spread("cudnn", 0.02) + spread("flash", 0.02))
    assert "Paired runs were on the same GPU, so its speed cancels in their ratios." in text


def test_a_group_on_few_of_the_gpus_is_named() -> None:
    text = sentence_of(spread("cudnn", 0.02) + spread("flash", 0.02, "baba") + spread("slow", 0.02, "bbbb"))
    assert text.endswith("`slow` ran on half of the GPUs or fewer: what sets them apart may be the GPUs.")
    apart = sentence_of(spread("cudnn", 0.0, "aaaa") + spread("flash", 0.0, "bbbb"))
    assert apart.startswith("Whether the 2 GPUs differ in speed was not tested")
    assert "`cudnn`, `flash` ran on half" in apart


def test_runs_on_an_unknown_gpu_on_several_or_after_another_attempt_do_not_count() -> None:
    rows = spread("cudnn", 0.02) + spread("flash", 0.02, "baba")
    others = [
        run("cudnn", 9.0, repeat=7, gpu_uuid=None),
        run("cudnn", 9.0, repeat=8, gpu_uuid="b", gpus=4),
        run("cudnn", 9.0, repeat=9, gpu_uuid="b", resumed_step=40),
    ]
    assert "leaves out 3 runs" in sentence_of(rows + others)
    assert sentence_of(rows + others).startswith(sentence_of(rows).partition(". ")[0])


def test_a_group_whose_runs_vary_far_more_is_named_as_left_out() -> None:
    rows = [row for label in ("cudnn", "flash", "flex") for row in spread(label, 0.02)]
    rows += [run("tiled", 1 + n % 3, repeat=n, gpu_uuid="ab"[n % 2]) for n in range(1, 5)]
    assert "This leaves out `tiled`, which varies far more than the other groups." in sentence_of(rows)


def test_one_gpu_or_none_that_is_known_needs_no_sentence() -> None:
    assert gpus_of(spread("cudnn", 0.0, "aaaa")) is None
    assert gpus_of([run("cudnn", repeat=n) for n in (1, 2, 3)]) is None
