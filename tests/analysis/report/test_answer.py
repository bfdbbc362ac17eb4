"""The answer says what the verdicts say, and no more."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta

import pytest

from analysis.report import tasks
from analysis.report.answer import StudyAnswer, answer_study, ran
from analysis.report.answer.limits import of_profiles
from analysis.report.answer.statement import VerdictRow
from analysis.report.backends import Backends
from analysis.verdicts.guard import Difference
from tests.analysis.report.study import NOBODY, Row, comparison, facts, planned
from tests.analysis.verdicts.rows import DESIGN, START

MARGIN = {"design": DESIGN | {"margins": {"tokens_per_second": 0.01, "loss": 0.005}}}
NOISE = (1.0, 1.002, 0.999)


def repeats(label: str, factor: float, **changes: object) -> list[Row]:
    """Three repeats, each block as fast as it is."""
    return [
        planned(label, 0.4 * noise / factor, repeat=n, **changes) for n, noise in enumerate(NOISE, start=1)
    ]


def answer_of(
    runs: list[Row], trust: Backends = NOBODY, logged: list[Row] | None = None, **changes: object
) -> StudyAnswer:
    return answer_study(
        facts(runs, **changes),  # type: ignore[arg-type]
        comparison(runs, logged or []),
        trust,
        [],
        tasks.load("training").answer,
    )


def headline(answer: StudyAnswer) -> list[str]:
    return [sentence.text for sentence in answer.headline]


def test_the_question_is_the_studys_own_and_its_title_if_it_asks_none() -> None:
    runs = repeats("cudnn", 1)
    assert answer_of(runs).question == "Which is fastest?"
    assert facts(runs).about == "All read one text."
    assert answer_of(runs, description="It only tells.").question == "Backends"


def options(speeds: dict[tuple[str, str], tuple[float, ...]]) -> list[Row]:
    """Runs by loss and float8, as fast as these factors say."""
    design = DESIGN | {
        "baseline": {"train.loss": "a", "train.float8": "none"},
        "margins": {"tokens_per_second": 0.01},
    }
    return [
        planned(
            f"{loss} {float8}",
            0.4 / factor,
            repeat=repeat,
            design=design,
            factors={"train.loss": loss, "train.float8": float8},
        )
        for (loss, float8), factors in speeds.items()
        for repeat, factor in enumerate(factors, start=1)
    ]


def test_of_many_settings_those_are_named_that_change_most_in_either_direction() -> None:
    alone = {"b": 1.5, "c": 1.02, "d": 1.03, "e": 1.04, "f": 1.05, "g": 0.6, "h": 1.06}
    speeds = {(loss, "none"): (factor, factor) for loss, factor in {"a": 1.0, **alone}.items()}
    speeds |= {("a", "rowwise"): (1.1, 1.1), ("b", "rowwise"): (1.95, 1.95)}
    (sentence,) = (text for text in headline(answer_of(options(speeds))) if "setting" in text)
    assert sentence == (
        "One setting at a time: `loss=b` +50.00 to +77.27 % (faster); `float8=rowwise` +10.00 to +30.00 % (faster); "
        "`loss=h` +6.00 % (faster); `loss=f` +5.00 % (faster); `loss=e` +4.00 % (faster); "
        "`loss=g` -40.00 % (slower); 2 more change less."
    )


def test_a_setting_with_several_verdicts_says_how_many_there_are_of_each() -> None:
    speeds = {
        ("a", "none"): (1.0, 1.0, 1.0),
        ("b", "none"): (1.2, 1.2, 1.2),
        ("a", "rowwise"): (1.0, 1.3, 0.8),
        ("b", "rowwise"): (1.5, 1.5, 1.5),
    }
    (sentence,) = (text for text in headline(answer_of(options(speeds))) if "setting" in text)
    assert "`float8=rowwise` +1 to +25.00 % (1 inconclusive, 1 faster)" in sentence
    runs = [run for run in options(speeds) if run["repeat"] == 1]
    (sentence,) = (text for text in headline(answer_of(runs)) if "setting" in text)
    assert sentence.startswith("One setting at a time, in one run each: ")


def test_what_was_run_is_one_sentence_with_its_numbers() -> None:
    sentence = answer_of([*repeats("cudnn", 1), *repeats("flash", 1.02)]).ran
    assert sentence.text == (
        "A llama of 1.38 million parameters was trained for 100 steps of 4,096 tokens on NVIDIA H200 "
        "under `cudnn` and `flash`, 3 runs each."
    )
    text = answer_of([planned(f"b{n}") for n in range(5)]).ran.text
    assert text.endswith("under 5 attention backends, one run each.")
    assert {number.name: number.value for number in sentence.numbers}["runs"] == 6


def test_what_was_run_counts_what_completed_and_no_more() -> None:
    """As in the demo: most backends are unsupported there, and one ends early at another length."""
    runs = [planned("auto"), planned("flash"), planned("flash", repeat=2)]
    runs += [planned(f"b{n}", outcome="unsupported", steps=None) for n in range(7)]
    settings = {"sequence_length": 16384, "train": {"sequence_length": 16384}}
    runs.append(planned("math", outcome="oom_host", steps=None, **settings))
    assert answer_of(runs).ran.text.endswith(
        "was trained for 100 steps of 4,096 tokens on NVIDIA H200 under 2 of 10 attention backends, "
        "1 to 2 runs each."
    )


CALL = {"shape": "B1 T16 H2 D16", "causal": True, "dtype": "float32", "backends": "flash", "steps": 3}
PROMPTS = {"steps": 60, "batch_size": 1, "prompt_length": 4096, "new_tokens": 128}


@pytest.mark.parametrize(
    ("config", "past", "intention"),
    [
        ({}, " was trained for 100 steps", " was to be trained for 100 steps"),
        ({"task": "attention", "call": CALL}, "alone was timed", "alone was to be timed"),
        (
            {"task": "inference", "inference": PROMPTS},
            " read 60 prompts of 4,096 tokens and decoded 128 tokens",
            " was to read 60 prompts of 4,096 tokens and decode 128 tokens",
        ),
    ],
    ids=["training", "attention", "inference"],
)
def test_what_no_run_completed_was_to_be_done(config: Row, past: str, intention: str) -> None:
    completed = planned("cudnn")
    completed["config"] = completed["config"] | config
    failed = completed | {"outcome": "failed", "run_id": "r2"}
    sentence = tasks.load(config.get("task", "training")).answer.ran
    assert past in sentence(facts([completed, failed])).text
    text = sentence(facts([failed])).text
    assert intention in text and past not in text


def rows(answer: StudyAnswer, quantity: str = "tokens per second") -> dict[str, VerdictRow]:
    """The verdicts on a quantity by group."""
    return {row.group: row for row in answer.verdicts if row.quantity == quantity}


def test_each_group_has_a_verdict_with_its_interval_and_what_it_rests_on() -> None:
    runs = [planned("cudnn", 0.4, repeat=n, **MARGIN) for n in (1, 2, 3)]
    for label, factor in (("flash", 1.05), ("flash3", 1.1), ("slow", 0.9), ("same", 1.0)):
        runs += repeats(label, factor, **MARGIN)
    answer = answer_of(runs)
    verdicts = rows(answer)
    flash3 = verdicts["flash3"]
    assert (flash3.difference, flash3.interval) == ("+9.96 %", "+9.68 to +10.25 %")
    assert (flash3.against, flash3.verdict) == ("cudnn", "faster")
    assert flash3.reason == "by more than the stated margin of 1 %"
    assert verdicts["slow"].verdict == "slower" and verdicts["slow"].difference.startswith("-10.")
    assert verdicts["same"].verdict == "equivalent" and verdicts["same"].difference == "-0.03 %"
    assert verdicts["same"].reason == "within the stated margin of 1 %"
    assert flash3.inference.startswith("Holds for further runs under the same conditions: 90 % t interval")
    number = {quantity.name: quantity for quantity in answer.numbers}["rate of flash3 against cudnn"]
    assert number.value == pytest.approx(9.96, abs=0.01)
    assert (number.low or 0) < number.value < (number.high or 0)
    assert number.unit == "percent"
    assert headline(answer)[0] == (
        "`flash3` has the highest rate, 11,264 tokens/s (+9.96 % against `cudnn`: faster); `slow` the lowest, "
        "9,216 tokens/s (-10.03 % against `cudnn`: slower)."
    )
    assert flash3.text == (
        "Tokens per second of `flash3` against `cudnn`: +9.96 % (+9.68 to +10.25 %), faster: by more than the "
        "stated margin of 1 %."
    )


def test_a_slower_group_is_called_slower_where_the_verdict_is_the_rankings() -> None:
    """The ranking has each pair once, the faster first, whichever of the two is the baseline."""
    flash = rows(answer_of([*repeats("cudnn", 1.0), *repeats("flash", 0.9)]))["flash"]
    assert (flash.difference, flash.verdict) == ("-10.00 %", "slower")


def recorded(label: str, *seconds: float, **changes: object) -> Row:
    """A run whose counted steps take these times in turn."""
    steps = list(range(20, 80))
    times = {"counted_step_seconds": [seconds[n % len(seconds)] for n in steps]}
    return planned(label, seconds[0], **times | changes)


def test_single_runs_are_observed_and_what_would_make_a_finding_is_said() -> None:
    answer = answer_of([recorded("cudnn", 0.4, 0.401, 0.402), recorded("flash", 0.8, 0.802, 0.804)])
    flash = rows(answer)["flash"]
    assert (flash.kind, flash.verdict) == ("observed", "observed")
    assert flash.reason == "not a finding: in one run each"
    assert flash.interval == "-50.00 to -50.00 %", "ends of the difference, not of the ratio"
    assert flash.inference.startswith("Holds for these runs only")
    assert headline(answer)[0] == (
        "In one run each, `cudnn` has the highest rate, 10,240 tokens/s; `flash` the lowest, 5,120 tokens/s "
        "(-50.00 % against `cudnn`: observed)."
    )
    assert any("write `repeats: 6` in the study" in sentence.text for sentence in answer.cannot_say)


def test_a_number_of_a_verdict_knows_whether_its_ends_are_those_of_a_range() -> None:
    steady, ramp = recorded("flex", 0.8, 0.802, 0.804), recorded("flash", *(0.8 + n / 100 for n in range(60)))
    verdicts = rows(answer_of([recorded("cudnn", 0.4, 0.401, 0.402), steady, ramp]))
    assert verdicts["flash"].interval.startswith("range ")
    flash, flex = (verdicts[name].number for name in ("flash", "flex"))
    assert flash and flash.is_range and flex and not flex.is_range


def test_single_runs_differ_only_where_their_interval_leaves_out_0() -> None:
    """As in a study on a busy laptop: -3 %, interval -40 to +37 %."""
    slower, wide = recorded("flash", 0.8, 0.8), recorded("flex", 0.3, 0.37, 0.43, 0.6)
    answer = answer_of([recorded("cudnn", 0.4, 0.4), slower, wide])
    flex = rows(answer)["flex"]
    assert (flex.difference, flex.interval, flex.verdict) == ("+0 %", "-7 to +8 %", "inconclusive")
    assert flex.reason == "in one run each: the interval includes equality"
    assert flex.number


def test_what_is_uncertain_is_not_shown_and_no_finding() -> None:
    runs = [
        planned("cudnn", 0.4 * factor, repeat=n, **MARGIN) for n, factor in enumerate((1, 1.1, 0.9), start=1)
    ]
    runs += [
        planned("flash", 0.4 * factor, repeat=n, **MARGIN) for n, factor in enumerate((1.1, 0.9, 1), start=1)
    ]
    answer = answer_of(runs)
    assert rows(answer)["flash"].verdict == "inconclusive"
    assert rows(answer)["flash"].reason == (
        "the interval is too wide for the stated margin of 1 %; more repeats would narrow it"
    )


def test_an_interval_across_the_margin_that_leaves_out_equality_says_so() -> None:
    margins = {"design": DESIGN | {"margins": {"tokens_per_second": 0.013}}}
    runs = [planned("cudnn", 0.4, repeat=n, **margins) for n in (1, 2, 3)]
    flash = rows(answer_of([*runs, *repeats("flash", 1.0132, **margins)]))["flash"]
    assert flash.difference.startswith("+1.") and flash.verdict == "inconclusive"
    assert flash.reason == (
        "the interval excludes equality, but not the stated margin of 1.3 %; more repeats would narrow it"
    )


def test_a_sweep_has_a_baseline_in_each_cell() -> None:
    runs = []
    for length in (512, 1024, 2048, 4096, 8192):
        cell = {"train.sequence_length": length}
        for attention, factor in (("cudnn", 1.0), ("flash", 0.9 - length / 1e5)):
            factors = {"attention": attention} | cell
            runs += repeats(f"{attention} {length}", factor, factors=factors, attention=attention, **MARGIN)
    answer = answer_of(runs)
    assert [row.against for row in rows(answer).values()] == [f"cudnn {2**n}" for n in range(9, 14)]
    assert all(row.number and "by more than" in row.reason for row in rows(answer).values())


def test_of_many_verdicts_the_extremes_of_each_are_shown_and_all_numbers_can_be_cited() -> None:
    runs = repeats("cudnn", 1.0, **MARGIN)
    runs += [row for n in range(1, 20) for row in repeats(f"b{n}", 1.0 + n / 20, **MARGIN)]
    answer = answer_of(runs)
    assert [row.group for row in answer.shown] == ["b1", "b19"]
    assert len([number for number in answer.numbers if number.name.startswith("rate of ")]) == 19


def test_that_two_rates_cannot_be_told_apart_does_not_make_them_equal() -> None:
    flash = rows(answer_of([*repeats("cudnn", 1.0), *repeats("flash", 1.0)]))["flash"]
    assert flash.verdict == "inconclusive"
    assert flash.reason == (
        "not told apart, which does not make them equal: to test that, state "
        "`margins: {tokens_per_second: PERCENT}` in the study before it runs"
    )


def test_a_ranking_that_does_not_tell_apart_what_an_interval_does_says_why() -> None:
    """The tests of a ranking are corrected for all pairs, and the interval beside the verdict is of one."""
    runs = [*repeats("cudnn", 1.0), *repeats("flex", 1.0001), *repeats("auto", 0.9999)]
    ratios = (1.01, 1.018, 1.014)
    runs += [planned("flash", 0.4 * NOISE[n] / ratio, repeat=n + 1) for n, ratio in enumerate(ratios)]
    flash = rows(answer_of(runs))["flash"]
    assert flash.number and flash.number.low is not None and flash.number.low > 0
    assert flash.verdict == "inconclusive"
    assert (
        flash.reason
        == "the interval excludes equality, but the test, which is corrected for all pairs, does not"
    )


def test_without_a_baseline_the_tests_of_the_ranking_say_what_the_first_is_not_told_from() -> None:
    def first_sentence(**factors: float) -> str:
        no_baseline = {"design": DESIGN | {"baseline": None}}
        runs = [row for label, factor in factors.items() for row in repeats(label, factor, **no_baseline)]
        return headline(answer_of(runs))[0]

    assert first_sentence(cudnn=1, flash=1.05) == (
        "`flash` has the highest rate, 10,752 tokens/s; `cudnn` the lowest, 10,240 tokens/s."
    )
    assert "tests do not tell it from `flex`;" in first_sentence(cudnn=1, flash=1.05, flex=1.05)
    assert "tests do not tell it from" not in first_sentence(cudnn=1, flash=1.05, flex=1.1)


@pytest.mark.fault
def test_the_first_is_not_said_to_be_ahead_of_a_group_that_no_test_tells_from_it_where_a_baseline_is_declared() -> (
    None
):
    """What verdicts against the baseline say is not said again."""
    runs = [
        row
        for label, factor in (("cudnn", 1), ("flash", 1.05), ("flex", 1.05))
        for row in repeats(label, factor)
    ]
    first, *_ = headline(answer_of(runs))
    assert "(+5.00 % against `cudnn`: faster); tests do not tell it from `fl" in first
    second, *_ = headline(answer_of([*repeats("cudnn", 1), *repeats("flash", 1.0)]))
    assert "tests do not" not in second
    third, *_ = headline(answer_of([*repeats("cudnn", 1), *repeats("flash", 1.0), *repeats("math", 0.8)]))
    assert "tests do not tell it from `" in third, "also of a baseline that leads"
    other_code = {"git_sha": "b" * 40, "code": "d" * 64}
    runs += repeats("auto", 1.049, **other_code)
    fourth, *_ = headline(answer_of(runs))
    assert ", nor compare it with `auto`; " in fourth


@pytest.mark.fault
def test_a_group_that_no_test_compares_with_the_first_is_not_said_to_be_told_from_it() -> None:
    no_baseline = {"design": DESIGN | {"baseline": None}}
    other_code = {"git_sha": "b" * 40, "code": "d" * 64}
    runs = [
        *repeats("cudnn", 1, **no_baseline),
        *repeats("flash", 1.05, **no_baseline),
        *repeats("flex", 1.05, **no_baseline),
        *repeats("auto", 1.02, **no_baseline, **other_code),
        planned("math", 0.4, **no_baseline),
    ]
    (text,) = headline(answer_of(runs))[:1]
    assert "tests do not tell it from `flex`, nor compare it with `auto` and `math`; " in text


def test_a_comparison_that_waits_for_more_repeats_is_not_called_uncertain() -> None:
    stopping_rule = {"until": {"tokens_per_second": 0.01, "at_most": 6}}
    design = {"design": DESIGN | stopping_rule | {"margins": {"tokens_per_second": 0.01}}}
    runs = [
        planned(label, 0.4 * factor, repeat=n, **design)
        for label in ("cudnn", "flash")
        for n, factor in ((1, 1.0), (2, 1.01))
    ]
    flash = rows(answer_of(runs))["flash"]
    assert flash.reason == "2 of at least 3 pairs of runs: no interval yet"
    assert (flash.difference, flash.interval, flash.inference) == ("+0 %", "", "")


def test_runs_that_are_not_comparable_get_no_verdict_but_the_reason() -> None:
    answer = answer_of([*repeats("cudnn", 1.0), *repeats("flash", 1.1, git_sha="b" * 40, code="d" * 64)])
    assert "withheld" not in headline(answer)[0], "there is no difference to say"
    flash = rows(answer)["flash"]
    assert (flash.verdict, flash.difference, flash.number) == ("withheld", "", None)
    assert flash.reason.startswith("Withheld, because the runs are not comparable: ")
    assert "at commit bbbbbbbbbb" in flash.reason


def losses(run_ids: list[str], offset: float) -> list[Row]:
    steps = list(range(1, 201))
    return [
        {"run_id": run_id, "steps": steps, "losses": [3 + offset + n % 5 / 1e4 for n in steps]}
        for run_id in run_ids
    ]


def test_losses_have_their_margin_and_a_wrong_one_is_said_beside_the_speed() -> None:
    runs = [*repeats("cudnn", 1.0), *repeats("flash", 1.0), *repeats("flash3", 1.1)]
    logged = losses(["cudnn01", "cudnn02", "cudnn03", "flash01", "flash02", "flash03"], 0)
    logged += losses(["flash301", "flash302", "flash303"], 0.1)
    answer = answer_of(runs, logged=logged)
    faster, lossy, same = (
        rows(answer)["flash3"],
        rows(answer, "loss")["flash3"],
        rows(answer, "loss")["flash"],
    )
    assert faster.verdict == "faster" and faster.reason.endswith("its loss differs")
    assert (lossy.difference, lossy.interval) == ("+0.1000 nats per token", "+0.1000 to +0.1000")
    assert (lossy.against, lossy.verdict) == ("cudnn", "different")
    assert lossy.reason == "by more than the stated margin of 0.005 nats"
    assert same.difference.startswith("+0.0000") and same.verdict == "equivalent"
    assert same.reason.startswith("within the stated margin of 0.005 nats")


def test_final_losses_come_with_the_difference_that_the_verdicts_are_on() -> None:
    """The last step's loss can be equal where the last fifth of the steps differs, and the other way round."""
    runs = [*repeats("cudnn", 1.0), *repeats("flash", 1.0), *repeats("flash3", 1.1, final_loss=2.5001)]
    logged = losses(["cudnn01", "cudnn02", "cudnn03", "flash01", "flash02", "flash03"], 0)
    apart = losses(["flash301", "flash302", "flash303"], -0.1)
    of_losses = next(text for text in headline(answer_of(runs, logged=[*logged, *apart])) if "Final" in text)
    assert of_losses == (
        "Final losses: 2.5001 (`flash3`) to 3.0000 (`cudnn` and `flash`); against the baseline, `flash3` differs "
        "and 1 of 2 is equivalent within the margin; over the last fifth of their common steps, the "
        "largest difference is that of `flash3` from `cudnn`: -0.1000 nats per token (90 %: -0.1000 to -0.1000; margin "
        "0.005)."
    )
    equal = losses(["flash301", "flash302", "flash303"], 0)
    of_losses = next(text for text in headline(answer_of(runs, logged=[*logged, *equal])) if "Final" in text)
    assert of_losses.endswith(" to 3.0000 (`cudnn` and `flash`), equivalent within the margin.")


def test_a_baseline_that_diverged_makes_no_other_group_differ() -> None:
    runs = [
        planned("cudnn", outcome="diverged", final_loss=None),
        planned("flash", 0.3),
        planned("flash3", 0.3),
    ]
    of_losses = next(
        text
        for text in headline(answer_of(runs, logged=losses(["flash01", "flash301"], 0)))
        if "Final" in text
    )
    assert of_losses == (
        "Final loss: 3.0000 for all 2 groups; none is compared with a baseline that diverged."
    )
    wide = [
        run
        | {
            "label": f"{run['label']} wide",
            "run_id": f"{run['run_id']}w",
            "factors": {**run["factors"], "model.dim": 2048},
            "outcome": "completed",
            "final_loss": 3.0,
        }
        for run in runs
    ]
    for run in runs:
        run["factors"] = {**run["factors"], "model.dim": 1024}
    logged = losses(["flash01", "flash301", "cudnn01w", "flash01w", "flash301w"], 0)
    of_losses = next(text for text in headline(answer_of([*runs, *wide], logged=logged)) if "Final" in text)
    assert "diverged" not in of_losses and "differ" not in of_losses, of_losses


def test_losses_of_groups_that_their_log_flags_or_that_cannot_be_compared_are_in_no_sentence_on_the_others() -> (
    None
):
    runs = [*repeats("cudnn", 1.0), *repeats("flash", 1.0), *repeats("flash3", 1.1, data_fingerprint="other")]
    logged = losses(["cudnn01", "cudnn02", "cudnn03"], 0) + losses(["flash01", "flash02", "flash03"], -0.002)
    logged += losses(["flash301", "flash302", "flash303"], 6)
    of_losses = next(text for text in headline(answer_of(runs, logged=logged)) if "Final" in text)
    assert "1 of 2 is equivalent within the margin and 1 is not comparable" in of_losses
    assert "is that of `flash` from `cudnn`: -0.0020" in of_losses.replace("difference is", "is")

    finding = {"level": "error", "sentence": "`flash3`: its loss is far from the others'.", "check": "loss"}
    wrong_log = {"format": "lsai", "findings": [finding]}
    logs = [*repeats("cudnn", 1.0), *repeats("flash", 1.0), *repeats("flash3", 1.1, imported=wrong_log)]
    *_, of_losses, _, left_out = headline(
        answer_of([*logs, planned("math", outcome="oom_gpu")], logged=logged)
    )
    assert of_losses == "Final loss: 3.0000 for all 2 groups, equivalent within the margin."
    assert left_out == "Left out of this answer, flagged in its log: `flash3` (loss)."


def test_of_many_groups_with_one_final_loss_the_number_is_said() -> None:
    runs = [run for n in range(4) for run in repeats(f"b{n}", 1.0)]
    runs += repeats("other", 1.0, final_loss=2.5)
    of_losses = next(text for text in headline(answer_of(runs)) if "Final" in text)
    assert of_losses.startswith("Final losses: 2.5000 (`other`) to 3.0000 (4 groups)")


def test_an_imported_log_beside_runs_is_not_told_to_write_repeats() -> None:
    log = planned("lsai", 0.3, imported={"format": "lsai"})
    (limit,) = [
        sentence.text
        for sentence in answer_of([*repeats("cudnn", 1), log]).cannot_say
        if "single run" in sentence.text
    ]
    assert limit.endswith("To test it, import 6 logs of each.")


def test_a_group_that_asked_for_more_tokens_than_the_others_has_no_result_at_that_many() -> None:
    runs = repeats("cudnn", 1.0, batch_size=4, sequence_length=256)
    large = planned("math", outcome="oom_host", batch_size=1, sequence_length=16384)
    assert headline(answer_of([*runs, large]))[-1] == (
        "No result: `math` (out of host memory, at 1 x 16,384 tokens)."
    )
    alike = planned("math", outcome="oom_host", batch_size=4, sequence_length=256)
    assert headline(answer_of([*runs, alike]))[-1] == "No result: `math` (out of host memory)."
    several = repeats("flash", 1.0, batch_size=8, sequence_length=256)
    assert headline(answer_of([*runs, *several, large]))[-1] == (
        "No result: `math` (out of host memory, at 1 x 16,384 tokens)."
    )
    unsupported = planned("flex", outcome="unsupported", batch_size=1, sequence_length=16384)
    assert headline(answer_of([*runs, unsupported]))[-1] == "No result: `flex` (unsupported)."


def test_an_expected_failure_is_a_result_and_another_is_not() -> None:
    rows = repeats("cudnn", 1)
    failure = {"outcome": "oom_gpu", "steps": 0, "device_users": None}
    rows.append(planned("math", **failure, expected_outcome="oom_gpu", because="it stores all scores"))
    rows.append(planned("flex", **failure, reason="CUDA out of memory"))
    rows.append(planned("late", outcome=None, steps=None))
    answer = answer_of(rows, trust=Backends([wrong()], [], []), quarantine=[{"path": "a", "reason": "torn"}])
    assert [sentence.text for sentence in answer.expected] == [
        "3 of the 5 runs that the study expected to complete did.",
        "`math` ended as `oom_gpu` (out of GPU memory) in 1 run, as the study expected: it stores all scores.",
    ]
    assert [sentence.text for sentence in answer.unexpected] == [
        "`flex` ended as `oom_gpu` (out of GPU memory) in 1 run, where the study expected `completed`: "
        "CUDA out of memory.",
        "`flash9` computes attention wrongly on NVIDIA H200: 3 of 50 checks of its certificate failed.",
    ]
    texts = [sentence.text for sentence in answer.cannot_say]
    assert "1 run of `late` has no outcome yet." in texts, "the first sentence counts those of other groups"
    assert "1 file could not be read: nothing from there is in this report." in texts


def test_a_first_page_quotes_the_beginning_of_a_long_reason() -> None:
    rows = [*repeats("cudnn", 1), planned("flex", outcome="failed", reason="it ended so, and so " * 40)]
    (text,) = [sentence.text for sentence in answer_of(rows).unexpected]
    assert text.endswith("it ended so, and ….") and 300 < len(text) < 420


def wrong() -> Row:
    return {
        "attention": "flash9",
        "dtype": None,
        "verdict": "wrong",
        "device_name": "NVIDIA H200",
        "failed": 3,
        "checks": 50,
        "software": {},
    }


def test_without_a_baseline_the_line_to_write_is_said() -> None:
    rows = [planned(label, design=None) for label in ("auto", "flash")]
    texts = [sentence.text for sentence in answer_of(rows).cannot_say]
    assert any("for example `baseline: {attention: auto}`" in text for text in texts)


def test_what_the_guard_found_among_the_runs_is_said() -> None:
    runs = repeats("cudnn", 1)
    difference = Difference("warmup", "All steps of cudnn lie in the learning-rate warm-up.")
    answer = answer_study(facts(runs), comparison(runs), NOBODY, [difference], tasks.load("training").answer)
    assert difference.sentence in [sentence.text for sentence in answer.cannot_say]


def test_only_runs_of_the_baseline_lack_no_counterpart() -> None:
    def limits(runs: list[Row]) -> list[str]:
        return [
            sentence.text
            for sentence in answer_of(runs).cannot_say
            if sentence.text.startswith("Not compared")
        ]

    assert limits(repeats("cudnn", 1)) == []
    compiled = {"factors": {"attention": "cudnn", "train.compile": True, "seed": 0}}
    assert limits([*repeats("cudnn", 1, **compiled), *repeats("flash", 1)]) == [
        "Not compared, because the baseline has no completed counterpart: `flash`."
    ]


@pytest.mark.parametrize(
    ("others", "reason"),
    [
        ([], "the baseline, `attention: cudnn`, has no run in this study"),
        (
            [planned("cudnn", outcome="failed")],
            "the baseline, `attention: cudnn`, has no completed run in this study",
        ),
    ],
)
def test_where_the_baseline_has_no_runs_that_is_why_nothing_is_compared(
    others: list[Row], reason: str
) -> None:
    answer = answer_of([*repeats("flash", 1), *repeats("flash3", 1), *others])
    assert f"Not compared, because {reason}: `flash` and `flash3`." in [
        sentence.text for sentence in answer.cannot_say
    ]


def test_where_no_run_completed_that_is_the_answer() -> None:
    assert headline(answer_of([planned("cudnn", outcome="failed"), planned("flash", outcome="oom_gpu")])) == [
        "No result: `cudnn` (failed) and `flash` (out of GPU memory)."
    ]
    assert headline(answer_of([planned("cudnn", outcome=None)])) == [
        "No answer yet: the baseline, `attention: cudnn`, has no completed run in this study."
    ]


def test_an_imported_run_did_the_steps_that_it_logged() -> None:
    unknown = {"planned_steps": None, "batch_size": None, "sequence_length": None}
    log = planned("lsai", imported={"format": "lsai"}, steps=1000, **unknown)
    assert " for 1,000 steps of an unknown number of tokens" in ran.trained(facts([log])).text


def test_names_of_groups_are_code_whatever_they_are() -> None:
    rows = [*repeats("cudnn", 1.0), *repeats("a`b{0}, c", 1.1, factors={"attention": "x", "seed": 0})]
    assert headline(answer_of(rows))[0].startswith("`a'b{0}, c` has the highest rate, ")


def test_many_groups_are_not_all_named_in_a_sentence() -> None:
    rows = [planned(f"g{n}", outcome="timeout", steps=5) for n in range(60)]
    (sentence,) = answer_of(rows).unexpected
    assert "`g10` and 49 more ended as `timeout`" in sentence.text


def test_names_of_numbers_are_unique() -> None:
    rows = [*repeats("cudnn", 1.0), *repeats("flash", 1.1), *repeats("flash3", 0.9)]
    names = [number.name for number in answer_of(rows).numbers]
    assert len(names) == len(set(names)) > 5


def test_a_verdict_says_how_many_planned_runs_it_leaves_out_and_why() -> None:
    failures = [planned("flash", repeat=4, outcome="failed"), planned("flash", repeat=5, outcome=None)]
    rows = [
        *repeats("cudnn", 1),
        *repeats("flash", 1.05),
        *failures,
        planned("cudnn", repeat=4, outcome="oom_gpu"),
    ]
    (omission,) = [sentence.text for sentence in answer_of(rows).cannot_say if "leave out" in sentence.text]
    assert omission == (
        "The verdicts on tokens per second leave out 2 of 5 runs of `flash` (1 `failed` and 1 without an outcome "
        "yet) and 1 of 4 runs of `cudnn` (1 `oom_gpu`)."
    )
    unfinished = [planned(label, repeat=4, outcome=None) for label in ("cudnn", "flash")]
    (shared_omission,) = [
        sentence.text
        for sentence in answer_of([*repeats("cudnn", 1), *repeats("flash", 1.05), *unfinished]).cannot_say
        if "leave out" in sentence.text
    ]
    assert shared_omission == (
        "The verdicts on tokens per second leave out 1 of 4 runs of each of `flash` and `cudnn` "
        "(1 without an outcome yet)."
    )
    growing_study = answer_of([*repeats("cudnn", 1), *repeats("flash", 1.05), *unfinished])
    assert growing_study.ran.text.endswith(" under `cudnn` and `flash`, 3 of 4 planned runs each.")
    assert not any("no outcome yet" in sentence.text for sentence in growing_study.cannot_say), (
        "that is said already"
    )
    many_rows = [
        row for n in range(6) for row in (*repeats(f"b{n}", 1), planned(f"b{n}", repeat=4, outcome=None))
    ]
    (counted_omission,) = [
        sentence.text for sentence in answer_of(many_rows).cannot_say if "leave out" in sentence.text
    ]
    assert "leave out 1 of 4 runs of each of 6 groups (1 without an outcome yet)." in counted_omission
    complete_study = answer_of([*repeats("cudnn", 1), *repeats("flash", 1.05)])
    assert not any("leave out" in sentence.text for sentence in complete_study.cannot_say)


def test_one_run_against_several_is_not_called_single_runs() -> None:
    answer = answer_of([*repeats("cudnn", 1), planned("flash", 0.3, seed=7)])
    flash = rows(answer)["flash"]
    assert (flash.difference, flash.verdict) == ("+33 %", "inconclusive")
    assert flash.reason == "in one run against the median of 3: there is no interval"
    assert flash.inference == "", "nothing is inferred without an interval"
    (limit,) = [sentence.text for sentence in answer.cannot_say if "single run" in sentence.text]
    assert limit == (
        "How much of the difference in speed of a single run (`flash`) is the machine's own, between two starts, is "
        "unknown. To test it, launch the study's other repeats too."
    )


def test_a_group_whose_other_repeats_failed_is_told_to_be_retried_and_not_to_have_repeats() -> None:
    failures = [
        planned("flash", repeat=n, outcome="failed", step_seconds=None, final_loss=None) for n in (2, 3)
    ]
    (limit,) = [
        sentence.text
        for sentence in answer_of([*repeats("cudnn", 1), planned("flash", 0.3), *failures]).cannot_say
        if "single run" in sentence.text
    ]
    assert limit == (
        "How much of the difference in speed of a single run (`flash`) is the machine's own, between two starts, is unknown. "
        "Other runs of `flash` did not complete: `runner retry study` starts them again."
    )
    limits = [
        sentence.text
        for sentence in answer_of([planned("flash", 0.3), *failures]).cannot_say
        if "one run" in sentence.text
    ]
    assert limits == [
        "What another start would give is unknown: one run (`flash`) completed. "
        "Other runs of `flash` did not complete: `runner retry study` starts them again."
    ]
    expected_failures = [
        row | {"expected_outcome": "failed"} for row in failures
    ]  # which a retry leaves alone
    (limit,) = [
        sentence.text
        for sentence in answer_of(
            [*repeats("cudnn", 1), planned("flash", 0.3), *expected_failures]
        ).cannot_say
        if "single run" in sentence.text
    ]
    assert limit.endswith("between two starts, is unknown.")


def test_repeats_are_to_be_written_in_the_scale_that_ran() -> None:
    """The scale's own number would hide that of the study."""
    runs = [planned(label, 0.3, scale="laptop") for label in ("cudnn", "flash")]
    (limit,) = [sentence.text for sentence in answer_of(runs).cannot_say if "single runs" in sentence.text]
    assert limit.endswith("To test them, write `repeats: 6` in the study's scale `laptop`.")


def test_of_a_launch_of_some_repeats_the_others_are_asked_for() -> None:
    command = ["runner", "launch", "s.yaml", "--only", "repeat=1"]
    runs = [planned(label, 0.3, command=command) for label in ("cudnn", "flash")]
    (limit,) = [sentence.text for sentence in answer_of(runs).cannot_say if "single runs" in sentence.text]
    assert limit.endswith("To test them, launch the study's other repeats too.")


def test_of_a_group_that_was_launched_less_often_the_others_repeats_are_asked_for() -> None:
    answer = answer_of([*repeats("cudnn", 1), planned("flash", 0.3)])
    (limit,) = [sentence.text for sentence in answer.cannot_say if "single run" in sentence.text]
    assert limit.endswith("To test it, launch the study's other repeats too.")
    other_scale = answer_of([*repeats("cudnn", 1), planned("flash", 0.3, scale="laptop")])
    (limit,) = [sentence.text for sentence in other_scale.cannot_say if "single run" in sentence.text]
    assert limit.endswith("To test it, write `repeats: 6` in the study's scale `laptop`.")


def test_where_every_one_of_many_groups_has_one_run_they_are_counted_and_not_listed() -> None:
    (limit,) = [
        sentence.text
        for sentence in answer_of([planned(f"b{n}", 0.3, seed=0) for n in range(5)]).cannot_say
        if "single" in sentence.text
    ]
    assert limit.startswith(
        "How much of the differences in speed of single runs (one of each of 5 groups) is the machine's own"
    )


def test_numbers_of_others_that_no_run_is_about_are_counted() -> None:
    def limits(*runs: Row) -> list[str]:
        return [
            sentence.text for sentence in answer_of(list(runs)).cannot_say if "others report" in sentence.text
        ]

    laptop = {"scale": "laptop", "reported_elsewhere": [1, 2, 4]}
    assert limits(planned("auto"), planned("flash")) == []
    assert limits(planned("auto", **laptop)) == [
        "What others report: 3 entries of `reported` are not shown, as there is no run of their cells at scale "
        "`laptop`."
    ]
    assert limits(planned("auto", **laptop), planned("flash", scale="full", reported_elsewhere=[4])) == [
        "What others report: 1 entry of `reported` is not shown, as there is no run of its cell at scales "
        "`laptop` and `full`."
    ]
    assert limits(planned("auto", **laptop), planned("flash", scale="full", reported_elsewhere=None)) == []


def test_one_run_that_is_paired_with_one_of_several_says_with_which() -> None:
    times = {
        "counted_step_seconds": [0.4 + n % 3 / 1e3 for n in range(60)],
    }
    baseline_runs = [planned("cudnn", 0.4, repeat=n, **times) for n in (1, 2, 3)]
    answer = answer_of([*baseline_runs, planned("flash", 0.4, **times)])
    reason = rows(answer)["flash"].reason
    assert reason == "in one run each, of the same repeat: the interval includes equality"


def profiles(**seconds: float) -> list[Row]:
    """What was profiled by phase, of `tiled`, beside timed ones of 0.4 s."""
    return [
        {"label": "tiled", "run_id": "r1", "phase": phase, "seconds": duration, "timed_seconds": 0.4}
        | {"attention": 0.02, "least_attention": 0.01}
        for phase, duration in seconds.items()
    ]


def test_profiled_steps_that_are_slower_than_timed_ones_are_a_caveat_of_their_figure() -> None:
    def caveats(runs: list[Row], **seconds: float) -> list[str]:
        sentences = answer_of(runs, profiles=profiles(**seconds)).cannot_say
        return [sentence.text for sentence in sentences if sentence.text.startswith("The figure of where")]

    training = repeats("tiled", 1)
    assert caveats(training, step=0.439) == []
    assert caveats(training, step=0.6132) == [
        "The figure of where the time of a step goes shows steps profiled after the run. Those of `tiled` (+53.3 %) took "
        "over 10 % longer or shorter than the timed ones, so it does not show where the time of the timed ones went."
    ]
    study_facts = facts(training, profiles=profiles(step=0.6, decode=0.6))
    nouns = ("a step", "a decoded token")
    assert [
        noun in sentence.text for sentence, noun in zip(of_profiles(study_facts, "step"), nouns, strict=True)
    ] == [
        True,
        True,
    ]


def test_parts_of_a_profile_that_cannot_be_are_a_caveat_of_their_figure() -> None:
    (row,) = profiles(step=0.4)
    sentences = answer_of(
        repeats("tiled", 1), profiles=[row | {"attention": 0.008, "least_attention": 0.0206}]
    ).cannot_say
    assert [sentence.text for sentence in sentences if sentence.text.startswith("The figure of where")] == [
        "The figure of where the time of a step goes is wrong for `tiled` (8 ms of at least 20.6 ms): attention would "
        "take less than it can, so the profile counts some of its kernels as other parts."
    ]


def test_a_backend_that_was_launched_and_left_no_record_is_missed() -> None:
    """`Every run completed` was said of a report whose launch had asked for flex, too."""
    command = ["runner", "launch", "x.yaml", "--only", "attention=cudnn,flash,flex", "--only=repeat=1,2,3"]
    runs = [*repeats("cudnn", 1, command=command), *repeats("flash", 1, command=command)]
    for run in runs:
        run["factors"] = run["factors"] | {"repeat": run["repeat"]}
    text = "A launch asked for `flex` (`attention`), but there is no record of such a run."
    assert [sentence.text for sentence in answer_of(runs).unexpected] == [text]
    assert not answer_of(runs, removed={"gone": "attention=flex"}).unexpected


def launched(places: Sequence[int], seconds: float, start: int = 0) -> list[Row]:
    """Runs at these places that one launch planned, so many seconds after another."""
    return [
        planned(f"b{start + n}", position_in_root=place, created_at=START + timedelta(seconds=seconds, microseconds=n))
        for n, place in enumerate(places)
    ]  # fmt: skip


def test_empty_places_of_a_launch_are_planned_runs_without_a_record() -> None:
    """12 of 18 planned runs were a report's, and nothing on it said so."""
    places = (1, 4, 6, 7, 9, 10, 11, 13, 14, 16, 17, 18)
    (single_launch,) = answer_of(launched(places, 0)).unexpected
    assert single_launch.text == (
        "A launch planned 18 runs or more, and 6 of them have no record: 6 places in its order of starting are "
        "empty (2, 3, 5, 8, 12 and 15)."
    )
    (two_launches,) = answer_of([*launched(places, 0), *launched((1, 2), 600, 12)]).unexpected
    assert two_launches.text == (
        "A launch planned 18 runs or more, and at least 4 of them have no record: 6 places in its order of "
        "starting are empty (2, 3, 5, 8, 12 and 15), for which 2 runs of other launches may stand."
    )
    assert [number.value for number in two_launches.numbers] == [4]


@pytest.mark.parametrize(
    "runs",
    [
        launched((3, 1, 2), 0),
        [*launched((1, 3), 0), *launched((2, 5, 4), 60, 2)],  # the first was killed while it wrote records
        [*launched((1, 2, 5, 6), 0), *launched((3, 4), 2, 4)],  # its disk was slow
        [*launched((1, 2, 3), 0), *launched((1, 5), 0.1, 3)],  # two roots
        launched((5, 6, 7), 0),  # earlier ones may be of another launch
    ],
)  # fmt: skip
def test_places_that_other_launches_may_have_filled_are_not_called_empty(runs: list[Row]) -> None:
    assert not answer_of(runs).unexpected
    assert not answer_of(launched((1, 9), 0), removed={"gone": "seed=3"}).unexpected


def test_a_single_run_is_not_all_1_runs() -> None:
    assert [sentence.text for sentence in answer_of([planned("auto")]).expected] == [
        "The run completed, as the study expected."
    ]
    assert answer_of(repeats("auto", 1)).expected[0].text == "All 3 runs completed, as the study expected."


def test_repeats_of_a_seed_are_not_called_one_pair_of_runs() -> None:
    """Three runs of each group, all of one seed, with too few records for an interval."""
    runs = [*repeats("cudnn", 1.0), *repeats("flash", 1.0)]
    logged = [row | {"steps": row["steps"][::10], "losses": row["losses"][::10]} for row in losses(
        [run["run_id"] for run in runs], 0
    )]  # fmt: skip
    reason = rows(answer_of(runs, logged=logged), "loss")["flash"].reason
    assert reason.startswith("no interval: one seed, 4 records, at least 24 needed")
    assert "pair of runs" not in reason
