"""How likely audits find a fault that is not everywhere is what docs/backends.md says."""

from math import expm1, log1p
from pathlib import Path
from random import Random

import pytest

from model.attention.verify.audited import Audit
from model.record.config import DataConfig, RunConfig, TrainConfig
from model.training.audit import audit_of

PAGE = Path(__file__).parents[3] / "docs" / "backends.md"
LENGTHS = (100, 1000, 10_000)
CALLS = (2, 10, 100, 1000)  # the fault is in one of so many
ROWS = (10_000, 100_000, 1_000_000)


def full(steps: int, seed: int = 0) -> RunConfig:
    """A run on a GPU by the defaults: the llama of experiments/backends.yaml at its full size."""
    data = DataConfig(path="text.parquet")
    return RunConfig(device="cuda", data=data, seed=seed, train=TrainConfig(steps=steps))


def audits(config: RunConfig) -> list[Audit]:
    """All audits of a run, as it comes to them step after step."""
    schedule, step = [], 1
    while step <= config.train.steps:
        audit, end = audit_of(config, step)
        schedule.append(audit)
        step = end + 1
    return schedule


def chance(share: float, looks: int) -> float:
    """That at least one of independent looks meets what is there in this share of them."""
    return -expm1(looks * log1p(-share))


def table() -> str:
    """The table of the page."""
    rows = [("a fault in", *(f"{steps:,} steps" for steps in LENGTHS)), ("---",) * (1 + len(LENGTHS))]
    audit_counts = {steps: len(audits(full(steps))) for steps in LENGTHS}
    model, train = full(1).model, full(1).train
    rows_per_call = model.heads // model.kv_heads * train.sequence_length
    for shares, unit, looks_per_audit in ((CALLS, "calls", 1), (ROWS, "rows", rows_per_call)):
        for one_in in shares:
            chances = [
                percent(chance(1 / one_in, looks_per_audit * audit_counts[steps])) for steps in LENGTHS
            ]
            rows.append((f"one of {one_in:,} {unit}", *chances))
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def percent(share: float) -> str:
    return "over 99.9 %" if share > 0.999 else f"{100 * share:.2g} %"


def test_the_page_has_the_chances_of_the_default_rate():
    assert table() in PAGE.read_text(encoding="utf-8"), f"docs/backends.md should have\n{table()}"


@pytest.mark.fault
@pytest.mark.parametrize("share", [0.1, 0.02])
def test_audits_meet_a_fault_as_often_as_its_chance_says(share):
    """In 2,000 runs of 1,000 steps, whose seeds make them audit other calls: three standard errors are 0.034."""
    hits = sum(any(wrong(audit, share) for audit in audits(full(1000, seed))) for seed in range(2000))
    assert hits / 2000 == pytest.approx(chance(share, 10), abs=0.034)


def wrong(audit: Audit, share: float) -> bool:
    """Whether a call is one of those that the fault shows in, which layer, step and head alone decide."""
    place = f"fault {audit.step} {audit.layer} {audit.sample} {audit.kv_head}"
    return Random(place).random() < share


def test_a_fault_that_stays_is_met_within_two_stretches():
    for seed in range(50):
        steps = [audit.step for audit in audits(full(10_000, seed))]
        gaps = [after - before for before, after in zip([0, *steps], steps, strict=False)]
        assert max(gaps) <= 199
