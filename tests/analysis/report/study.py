"""A study's facts and comparison, made up without a database: what sentences and tables are made from."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from analysis.report.backends import Backends
from analysis.report.comparison import StudyComparison
from analysis.report.facts import Facts, GroupFacts
from analysis.stats import by_label, over_runs
from analysis.verdicts import conditions
from analysis.verdicts.conditions import gpus_of
from analysis.verdicts.groups import absent, alone, declared, final_loss, groups_of, step_pairs
from analysis.verdicts.losses import loss_verdicts
from analysis.verdicts.rates import rates
from analysis.verdicts.scaling import curves
from tests.analysis.verdicts.rows import run

Row = dict[str, Any]
MODEL = {
    "dim": 192,
    "layers": 3,
    "heads": 6,
    "kv_heads": 2,
    "ffn_dim": 512,
    "vocab_size": 512,
    "rope_theta": 500000.0,
    "norm_eps": 1e-5,
}
TRAIN = {
    "steps": 100,
    "sequence_length": 4096,
    "batch_size": 1,
    "accumulate": 1,
    "learning_rate": 2e-3,
    "warmup_steps": 20,
    "clip_norm": 1.0,
    "weight_decay": 0.01,
    "log_every": 5,
    "dtype": "bfloat16",
    "compile": False,
    "loss": "cross_entropy",
    "optimizer": "adamw",
    "float8": "none",
    "checkpoint_activations": False,
    "reduce": "dtype",
    "attention_dropout": 0.0,
}
DATA = {"path": "../data/text.parquet", "mode": "pad", "tokenizer": "bytes", "text_column": "text"}
NOBODY = Backends([], [], [])


def planned(label: str, seconds: float = 0.4, **changes: Any) -> Row:
    """A completed run as the report's query gives it; `train` and other parts of `config` may be given apart."""
    train = TRAIN | changes.pop("train", {})
    fields = {
        "expected_outcome": "completed",
        "because": None,
        "given_label": None,
        "position_in_root": None,
        "reason": None,
        "config": {"model": MODEL, "data": DATA, "train": train},
        "planned_steps": train["steps"],
        "steps": train["steps"],
        "sequence_length": train["sequence_length"],
        "batch_size": train["batch_size"],
        "overridden": {},
        "command": ["runner", "launch", "study.yaml"],
        "scale_description": "",
        "reported_elsewhere": [],
        "tokenizer": "bytes",
        "highest_learning_rate": None,
        "study_file": "study.yaml",
        "peak_source": "a data sheet",
        "certificate": None,
        "slowest_rank": None,
        "ranked_records": None,
        "deciding_attempt": 1,
        "measured_attempt": 1,
    }
    row = run(label, seconds, **fields | changes)
    attempt = {name: row[name] for name in ("node", "started_at", "ended_at")}
    return {"history": [attempt]} | row


def facts(
    runs: Sequence[Row], description: str = "Which is fastest? All read one text.", **changes: Any
) -> Facts:
    """The facts of these runs."""
    groups = []
    for label, group_runs in by_label(runs).items():
        completed = [run for run in group_runs if run["outcome"] == "completed"]
        rates = [run["tokens_per_step"] / run["step_seconds"] for run in completed if run["step_seconds"]]
        rate = over_runs(rates) if rates else None
        groups.append(
            GroupFacts(label, len(group_runs), len(completed), rate, None, None, final_loss(completed))
        )
    fields: dict[str, Any] = {"quarantine": [], "dictionary": [], "groups": groups} | changes
    return Facts("study", "Backends", description, list(runs), **fields)


def comparison(runs: Sequence[Row], logged: Sequence[Row] = ()) -> StudyComparison:
    """What they say of each other, as `comparison.of_study` puts it together."""
    completed = [run for run in runs if run["outcome"] == "completed"]
    groups, baseline = groups_of(completed), declared(completed or runs)
    return StudyComparison(
        rates=rates(completed),
        losses=loss_verdicts(runs, logged),
        scaling=curves(completed),
        singles=[label for label, group in groups.items() if len(group.runs) == 1],
        alone=alone(groups, baseline),
        absent=absent(runs, baseline),
        drift=conditions.drift_of(completed),
        gpus=gpus_of(completed),
        order=conditions.order_of(runs),
        load=conditions.load_of(completed),
        busy=conditions.busy(completed),
        advice=None if baseline else "baseline: {attention: auto}",
        queries=[],
        step_losses=loss_verdicts(runs, logged, step_pairs),
    )
