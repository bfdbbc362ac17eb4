"""What headlines and captions say of small studies whose records were written by hand, worked out by hand."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

from analysis.charts._rows import marks_caption
from analysis.stats import Estimate, within_run
from analysis.stats.machines import Drift
from analysis.stats.machines import drift as trend_of
from analysis.stats.paired import paired_rounds
from analysis.store.collect import collect
from analysis.verdicts.values import held_back
from analysis.wording import drift
from model.record.records import DesignRecord
from tests.analysis.charts.drawn import draw
from tests.analysis.charts.test_step_profile import run as profiled
from tests.analysis.fabricate import START, Folder, completed, plan


def resumed(root: Path) -> None:
    """100 steps of 0.4 s in two attempts: the first went on for 30 s after step 50, from which the second starts.

    The second began to train after 10 s, and its first record took ten times as long as the others.
    """
    folder = Folder(root, plan("r1"))
    folder.event("claimed", executor="local", host="login1", pid=7)
    folder.start()
    for step in range(5, 71, 5):
        folder.step(step)
    folder.end("cancelled", steps=70, seconds=50)
    folder.start(attempt=2, resumed_attempt=1, resumed_step=50)
    for step in range(55, 101, 5):
        moment = START + timedelta(hours=1, seconds=30 + 0.4 * (step - 55))
        folder.step(step, 4.0 if step == 55 else 0.4, attempt=2, time=moment)
    folder.end(attempt=2, seconds=70)


def test_the_hours_between_two_attempts_and_what_was_lost_are_no_training_time(tmp_path: Path) -> None:
    """The steps take 95 x 0.4 + 5 x 4 s, all else 62 of the 120 s of both attempts. Step 50 was logged after 20 s of the first attempt, which took 50 s."""
    resumed(tmp_path)
    collect(tmp_path)
    figure = draw(tmp_path, "time")
    assert figure and figure.table and figure.finding
    assert figure.finding.startswith("Training time, steps alone: 58.0 seconds, one run; all else adds 107 %")
    cells = dict(zip(figure.table.columns, figure.table.rows[0], strict=True))
    assert cells["steps, seconds"] == "40.00" and cells["first step's extra, seconds"] == "18.00"
    assert cells["lost with an earlier attempt, seconds"] == "30.00"
    assert cells["start-up, seconds"] == "10.00" and cells["rest, seconds"] == "22.00"
    assert "Lost: an earlier attempt's time after the last of its steps that counts." in figure.caption


def test_the_first_step_of_a_later_attempt_does_not_say_how_steady_a_run_is(tmp_path: Path) -> None:
    resumed(tmp_path)
    collect(tmp_path)
    figure = draw(tmp_path, "tokens_over_steps")
    assert figure and figure.finding == (
        "The middle half of each run's counted steps is within 0 % of its median rate"
    )


def test_a_run_of_one_attempt_has_lost_nothing(tmp_path: Path) -> None:
    completed(tmp_path, "r1")
    collect(tmp_path)
    figure = draw(tmp_path, "time")
    assert figure and figure.table and not any("lost" in head for head in figure.table.columns)
    assert "Lost" not in figure.caption


def test_single_losses_are_held_beside_those_of_the_baselines_own_repeats(tmp_path: Path) -> None:
    """flash is at most 0.020 from the baseline's mean, and the baseline's two repeats 0.030 from each other."""
    design = DesignRecord(order="interleaved", baseline={"attention": "auto"}, margins={"loss": 0.005})
    losses = {"auto1": ("auto", 1, 3.000), "auto2": ("auto", 2, 3.000), "flash1": ("flash", 1, 3.000)}
    for run_id, (attention, repeat, loss) in losses.items():
        folder = Folder(tmp_path, plan(run_id, attention=attention, repeat=repeat, design=design))
        folder.start()
        for step in range(5, 101, 5):
            offset = {"auto2": 0.030, "flash1": 0.035}.get(run_id, 0.0) if step == 60 else 0.0
            folder.step(step, loss=loss + offset)
        folder.end()
    collect(tmp_path)
    figure = draw(tmp_path, "loss_difference")
    assert figure and figure.finding == (
        "Losses of single runs differ by up to 0.020 nats from the mean of auto's 2 repeats (flash, step 60); "
        "one of auto's repeats from the mean of its others by up to 0.030"
    )
    assert "margin" not in figure.finding and "not of single steps" in figure.caption


def test_times_under_their_floor_are_said_with_how_far_they_are(tmp_path: Path) -> None:
    profiled(tmp_path, "r1", "cudnn", parts={"optimizer": 1e-6})
    collect(tmp_path)
    caption = draw(tmp_path, "step_profile").caption  # type: ignore[union-attr]
    assert " no strict limit: " in caption
    assert "; optimizer in 1 of 1 run, by 100.0 %." in caption


def test_the_largest_part_is_said_whichever_it_is(tmp_path: Path) -> None:
    profiled(tmp_path, "r1", "math", parts={"attention": 0.6})
    profiled(tmp_path, "r2", "cudnn")
    profiled(tmp_path, "r3", "flash")
    collect(tmp_path)
    assert draw(tmp_path, "step_profile").finding == (  # type: ignore[union-attr]
        "Largest part of a step: matrix products, 63 % in cudnn and flash; attention, 62 % in math, one run each"
    )


def test_peak_memory_of_several_gpus_is_per_gpu(tmp_path: Path) -> None:
    for run_id, gpus in (("r1", 1), ("r2", 2)):
        folder = Folder(tmp_path, plan(run_id, attention="auto" if gpus == 1 else "flash"))
        folder.start(gpus=gpus)
        for step in range(5, 101, 5):
            folder.step(step)
        folder.end(peak_memory_bytes=(70 + gpus) * 2**30)
    collect(tmp_path)
    figure = draw(tmp_path, "memory")
    assert figure and figure.finding == (
        "Peak memory per GPU: least 71.00 GiB (auto), most 72.00 GiB (flash), one run each"
    )
    assert "of the GPU with most" in figure.caption


def test_an_interval_that_is_all_of_a_runs_records_says_so() -> None:
    """A run that grows slower throughout: each record says nearly what the one before it said."""
    slower = within_run([1.0 + step / 100 for step in range(50)])
    assert slower.method.startswith(
        "no interval, but the range of all 50 records of one run, whose autocorrelation allows none"
    )
    steady = within_run([1.0 + (step * 7 % 50) / 100 for step in range(50)])
    assert steady.low is not None and "autocorrelation" in steady.method
    assert isinstance(steady, Estimate)
    assert marks_caption({"a": slower, "b": steady}).endswith("Lines: intervals; ranges of the records in a.")
    assert marks_caption({"a": slower}) == "Marks: runs. Bars: their medians. Lines: ranges of the records."


def test_a_range_is_no_interval_in_a_ratio_of_rounds_either() -> None:
    """One backend slows down from round to round."""
    ratio = paired_rounds([1.0] * 30, [1.0 + index / 100 for index in range(30)])
    assert (ratio.low, ratio.high) == (1.0, 1.29)
    assert ratio.method == (
        "paired by round, no interval, but the range of all rounds, whose autocorrelation allows none"
    )


def test_losses_that_share_a_point_are_said_to_be_means(tmp_path: Path) -> None:
    """A line has at most 200 points: 400 records of a step share them two by two. One is 0.030 off."""
    design = DesignRecord(order="interleaved", baseline={"attention": "auto"})
    for run_id in ("auto", "flash"):
        folder = Folder(tmp_path, plan(run_id, attention=run_id, design=design, steps=400))
        folder.start()
        for step in range(1, 401):
            folder.step(step, steps=1, loss=3.0 + 0.030 * (run_id == "flash" and step == 300))
        folder.end()
    collect(tmp_path)
    figure = draw(tmp_path, "loss_difference")
    assert figure and figure.finding == (
        "Losses of single runs, means of up to 2 records, differ by up to 0.015 nats from auto's (flash, step 300)"
    )


def test_what_all_else_adds_is_of_sums_and_not_of_medians_and_no_run_exceeds_what_is_told(
    tmp_path: Path,
) -> None:
    """Runs of 40, 160 and 40 s of steps, in 100, 400 and 150 s: 410 s beside 240, where the medians are 110 and 40."""
    for seed, (seconds, total) in enumerate(((0.4, 100.0), (1.6, 400.0), (0.4, 150.0))):
        folder = Folder(tmp_path, plan(f"r{seed}", seed=seed))
        folder.start()
        for step in range(5, 101, 5):
            folder.step(step, seconds)
        folder.end(seconds=total)
    collect(tmp_path)
    finding = draw(tmp_path, "time").finding or ""  # type: ignore[union-attr]
    assert finding.endswith("; all else adds 171 % in total, 275 % in one run")


def test_one_noisy_group_is_no_drift_of_the_machine() -> None:
    """Four groups keep their times; tiled, whose runs vary by tens of percent, happens to get faster."""
    steady = {
        (group, block): 1.0 + 0.001 * ((3 * block + index) % 4)
        for index, group in enumerate(("auto", "cudnn", "flash", "flex"))
        for block in range(5)
    }
    seconds = steady | {
        ("tiled", block): tiled_seconds for block, tiled_seconds in enumerate((9.0, 6.5, 7.0, 5.0, 4.0))
    }
    tested = trend_of(seconds)
    assert tested.noisy == ("tiled",) and tested.change == trend_of(steady).change
    assert drift(tested).endswith(", without tiled, whose runs vary far more.")


def test_blocks_that_could_hide_any_drift_are_said_to() -> None:
    wide = Drift(0.1, -1.0, 1_604_983_166.15, 0.6, 3)
    assert drift(wide) == "No drift was found, but 3 blocks as uneven as these would hide one."
    narrow = Drift(0.0039, -0.0014, 0.0093, 0.15, 5)
    assert drift(narrow).startswith("No drift was found: 0.39 % slower from the first block to the last")


def test_the_share_of_the_time_that_clocks_were_held_back_is_of_all_runs_and_not_of_the_worst() -> None:
    runs = [{"wall_seconds": 100.0, "slowed_seconds": slowed} for slowed in (59.0, 29.0)]
    assert held_back(runs, "slowed_seconds") == 0.44
