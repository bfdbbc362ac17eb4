"""What may be said of losses, and of the conditions that runs were measured under."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from analysis.verdicts.conditions import busy, drift_of, load_of, order_of
from analysis.verdicts.groups import final_loss
from analysis.verdicts.losses import loss_verdicts
from analysis.wording import drift, sentence
from tests.analysis.verdicts.rows import DESIGN, Row, repeated, run

NOISE = np.random.default_rng(3)
STEPS = list(range(81, 101))


def logged(rows: list[Row], **offsets: float) -> list[Row]:
    """Losses that runs of one seed share, but for rounding and each backend's own offset."""
    shared = {seed: 3 + 0.2 * np.random.default_rng(seed).standard_normal(len(STEPS)) for seed in range(9)}
    return [
        {
            "run_id": row["run_id"],
            "steps": STEPS,
            "losses": (
                shared[row["seed"]] + 2e-4 * NOISE.standard_normal(len(STEPS)) + offsets.get(row["label"], 0)
            ).tolist(),
        }
        for row in rows
    ]


def seeds(label: str, **changes: Any) -> list[Row]:
    return [run(label, seed=seed, **changes) for seed in (0, 1, 2)]


def test_losses_within_the_margin_are_equivalent_and_beyond_it_different() -> None:
    rows = seeds("cudnn") + seeds("flash") + seeds("fa3")
    flash, fa3 = loss_verdicts(rows, logged(rows, fa3=0.1))
    assert (flash.label, flash.verdict.kind, flash.verdict.level) == ("flash", "equivalent", "runs")
    assert (fa3.verdict.kind, fa3.margin) == ("different", 0.005)
    assert fa3.verdict.difference == pytest.approx(0.1, abs=1e-3)


def test_without_a_margin_that_was_stated_in_advance_nothing_is_equivalent() -> None:
    rows = seeds("cudnn") + seeds("flash")
    rows[0]["design"] = DESIGN | {"margins": {"loss": 0.5}}
    (loss,) = loss_verdicts(rows, logged(rows))
    assert loss.margin is None
    assert loss.verdict.kind == "inconclusive"


def test_the_path_of_the_text_does_not_matter_and_another_text_breaks_the_comparison() -> None:
    config = {"config": {"data": {"path": "copy.parquet", "mode": "pad"}, "train": {}}}
    rows = seeds("cudnn") + seeds("flash", **config) + seeds("tiled", data_fingerprint="e" * 16)
    flash, tiled = loss_verdicts(rows, logged(rows))
    assert flash.verdict.kind == "equivalent"
    assert tiled.verdict.kind == "withheld"
    assert (tiled.verdict.low, tiled.verdict.high) == (None, None)


def test_repeats_of_one_seed_are_one_measurement_and_not_several() -> None:
    """On a CPU they are the same to the bit: as six runs they would prove any difference."""
    rows = repeated("cudnn", [0.4] * 6) + repeated("flash", [0.4] * 6)
    (loss,) = loss_verdicts(rows, logged(rows, flash=0.004))
    assert loss.verdict.n == 1
    assert loss.verdict.level == "records of one run each"
    assert "Two repeats differ by" in sentence(loss.verdict)


def test_a_loss_that_is_not_finite_is_different() -> None:
    rows = seeds("cudnn") + seeds("flash")
    losses = logged(rows)
    losses[-1]["losses"][3] = None
    (loss,) = loss_verdicts(rows, losses)
    assert loss.verdict.kind == "different"
    assert "not finite" in sentence(loss.verdict)


def test_the_final_loss_has_an_interval_over_seeds() -> None:
    rows = [
        run("a", seed=seed, repeat=repeat, final_loss=3 + seed / 10) for seed in range(6) for repeat in (1, 2)
    ]
    estimate = final_loss(rows)
    assert estimate
    assert estimate.n == 6
    assert estimate.low is not None
    assert estimate.low < estimate.median < (estimate.high or 0)
    assert final_loss([run("a", final_loss=None)]) is None


def test_final_losses_of_two_seeds_meet_in_the_middle_between_them_without_an_interval() -> None:
    """They are compared by their difference: the middle that rates have would be 2.4. Student's interval of
    two is -10.1 to 15.3."""
    estimate = final_loss([run("a", seed=0, final_loss=1.6), run("a", seed=1, final_loss=3.6)])
    assert estimate
    assert estimate.median == pytest.approx(2.6)
    assert (estimate.low, estimate.high, estimate.method) == (None, None, "no interval: 2 seeds")
    three_seeds = final_loss([run("a", seed=seed, final_loss=3.0 + seed / 10) for seed in range(3)])
    assert three_seeds and three_seeds.low is not None
    assert (
        three_seeds.method == "95 % t interval of the mean over 3 seeds, which assumes that they are normal"
    )


def test_a_machine_that_slowed_down_from_block_to_block_is_said() -> None:
    times = [0.4, 0.44, 0.48, 0.52, 0.56]
    rows = repeated("cudnn", times) + repeated("flash", [1.001 * value for value in times])
    assert drift_of(rows).drifted
    steady = repeated("cudnn", [0.4, 0.41, 0.4, 0.41, 0.4]) + repeated("flash", [0.4, 0.4, 0.41, 0.4, 0.41])
    assert not drift_of(steady).drifted
    unblocked = drift_of(repeated("cudnn", times, block=None))
    assert unblocked.change is None
    assert "not started in blocks" in drift(unblocked)


def test_blocks_that_lack_a_group_are_not_said_to_have_every_one() -> None:
    """As of a study that was launched group by group, with `--only`."""
    rows = [run("a", block=1), run("b", block=1), run("c", block=2)]
    assert "2 blocks without some of the groups" in order_of(rows)
    assert "2 blocks of one run of every group" in order_of([run("a", block=1), run("a", block=2)])


def test_order_load_and_other_users_are_said() -> None:
    rows = repeated("cudnn", [0.4, 0.4]) + repeated("flash", [0.4, 0.4], load_before=3.0, device_users=2)
    assert order_of(rows) == "interleaved, 2 blocks of one run of every group, shuffled with seed 7"
    assert load_of(rows) == (
        "load before the runs 0.05 to 1.5 per core; other processes were on the device of 2 of 4 runs"
    )
    assert "When 2 of 4 completed runs started" in (busy(rows) or "")
    unknown = [run("a", design=None, load_before=None, load_of_others=None, device_users=None)]
    assert order_of(unknown).startswith("unknown")
    assert load_of(unknown) == "load not recorded"
    assert busy(unknown) is None


@pytest.mark.fault
def test_a_seed_that_diverged_is_not_left_out_of_what_is_called_equivalent() -> None:
    rows = seeds("cudnn") + seeds("flash") + seeds("fa3") + [run("fa3", repeat=2)]
    rows[-1] |= {"outcome": "diverged", "steps": 40, "final_loss": None}
    completed = [row for row in rows if row["outcome"] == "completed"]
    flash, fa3 = loss_verdicts(rows, logged(completed))
    assert flash.verdict.kind == "equivalent"
    assert (fa3.verdict.kind, fa3.verdict.low) == ("different", None)
    assert "is not finite at step 40" in sentence(fa3.verdict)
