"""Training: steps of a llama over a text, with their rate and their loss."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from analysis.query.latex import escaped
from analysis.query.statements import TRAINING_METRICS, TRAINING_SUMMARY
from analysis.report.answer import AnswerParts, headline, limits, ran
from analysis.report.overview import (
    OverviewColumn,
    PanelSpec,
    efficiency_estimate,
    loss,
    scaling_kind,
    time_to_train,
)
from analysis.report.rows import Run
from analysis.report.tasks import CarriedTable, Cite, GroupColumn, ReportTask, RunColumn, WriteupParts
from analysis.report.tasks._llama import (
    AGAINST_BASELINE,
    DATA,
    MEMORY,
    MFU,
    MFU_PANEL,
    MODEL,
    OUTCOME,
    RATE,
    RATE_PANEL,
    RATES_NOTE,
    RUN_RATES,
    N,
)
from analysis.report.topics import Setting, SetupTopic, lines, plain, setting, whole
from analysis.wording import number
from model.record.units import counted

if TYPE_CHECKING:
    from analysis.report.answer.statement import Sentence, VerdictRow
    from analysis.report.comparison import StudyComparison
    from analysis.report.facts import Facts

_WARMUP_RULE = (
    "a step record counts only if its interval (step - steps, step] starts at or after W steps, "
    "W = max(1, min(10, planned steps // 10)), is not the first of a resumed attempt, and comes from the "
    "device that the measured attempt ran on"
)


def _settings(runs: Sequence[Run]) -> Iterator[Setting]:
    started = [run for run in runs if run["device"] or run["imported"]]
    padded = [run for run in started if run["training_tokens_percentage"] is not None or run["imported"]]
    yield from lines("Model", MODEL, runs)
    yield from lines("Training", _TOPICS, runs)
    yield from lines("Training", (SetupTopic("Steps", _steps, ("train.steps",)),), runs, started)
    for topic in _OF_SEVERAL_PROCESSES:
        if those := [run for run in runs if topic.text_of(run)]:
            yield from lines("Training", (topic,), runs, those)
    yield from lines("Data", DATA, runs)
    yield from lines("Data", (SetupTopic("Padding", _padding),), runs, padded)


def _tokens(run: Run) -> str | None:
    batch, length = run["batch_size"], run["sequence_length"]
    return None if batch is None or length is None else f"{batch * length:,d}"


def _batch(run: Run) -> str | None:
    samples, parts = run["batch_size"], setting("train", "accumulate")(run) or 1  # not in older records
    if samples is None or parts == 1:
        return None if samples is None else f"{samples:,d}"
    return f"{samples:,d}, in {parts:,d} parts whose gradients are added up"


def _compiled(run: Run) -> str | None:
    chosen = setting("train", "compile")(run)
    return None if chosen is None else "yes, block by block" if chosen else "no"


def _loss(run: Run) -> str | None:
    if run["imported"]:
        return None
    joined = setting("train", "loss")(run) == "linear_cross_entropy"  # older records have no such key
    return f"cross-entropy{', joined with the output head' if joined else ' of the logits in float32'}"


def _learning_rate(run: Run) -> str | None:
    planned = plain(setting("train", "learning_rate"))(run)
    if planned is None and run["imported"] and run["highest_learning_rate"] is not None:
        return f"{run['highest_learning_rate']:g} at the highest, by the records"
    return planned


def _warm_up(run: Run) -> str | None:
    steps, planned = setting("train", "warmup_steps")(run), run["planned_steps"]
    if steps is None or planned is None:
        return None
    if steps == 0:
        return "none: constant from the first step"
    if planned <= steps:
        return f"linear over {counted(steps, 'step')}: all {planned:,d} steps lie inside it"
    return f"linear over the first {steps:,d} of {planned:,d} steps, then constant"


def _steps(run: Run) -> str | None:
    if run["steps"] is None or run["planned_steps"] is None:
        return None if run["steps"] is None else f"{run['steps']:,d} of an unknown number"
    return f"{run['steps']:,d} of {run['planned_steps']:,d} planned"


def _optimizer(run: Run) -> str | None:
    decay, clip = setting("train", "weight_decay")(run), setting("train", "clip_norm")(run)
    if None in (decay, clip):
        return None
    one_pass = setting("train", "optimizer")(run) == "adamw_one_pass"
    by = " by this project's one-pass kernels" if one_pass else ""
    return f"AdamW{by}, weight decay {decay:g}, gradients clipped to norm {clip:g}"


def _reduced(run: Run) -> str | None:
    if run["imported"] or not run["config"].get("parallel"):
        return None
    wide = setting("train", "reduce")(run) == "float32"
    return "added up in float32" if wide else "added up in the precision of the parameters"


def _gathered(run: Run) -> str | None:
    parallel = run["config"].get("parallel") or {}
    if run["imported"] or parallel.get("shard", 1) * parallel.get("context", 1) == 1:
        return None
    again = parallel.get("reshard", True)
    return "gathered for each pass of a block" if again else "gathered once a step, and kept meanwhile"


def _activations(run: Run) -> str | None:
    if run["imported"]:
        return None
    if setting("train", "checkpoint_activations")(run):  # older records have no such key
        return "of each block recomputed in the backward pass, from the block's input (checkpointing)"
    return "kept for the backward pass; none are recomputed (no checkpointing)"


def _precision(run: Run) -> str | None:
    dtype, scaling = setting("train", "dtype")(run), setting("train", "float8")(run) or "none"
    return dtype if scaling == "none" else f"{dtype}, products of the blocks in float8 ({scaling} scaling)"


def _padding(run: Run) -> str | None:
    if run["training_tokens_percentage"] is None:
        return None
    return f"{100 - run['training_tokens_percentage']:.1f} % of the tokens, which tokens per second include"


_TOPICS = (
    SetupTopic("Sequence length", whole(lambda run: run["sequence_length"]), ("train.sequence_length",)),
    SetupTopic("Batch", _batch, ("train.batch_size", "train.accumulate")),
    SetupTopic("Tokens per step", _tokens),
    SetupTopic("Precision", _precision, ("train.dtype", "train.float8")),
    SetupTopic("Loss", _loss, ("train.loss",)),
    SetupTopic("Optimizer", _optimizer, ("train.optimizer", "train.weight_decay", "train.clip_norm")),
    SetupTopic("Learning rate", _learning_rate, ("train.learning_rate",)),
    SetupTopic("Learning-rate warm-up", _warm_up, ("train.warmup_steps",)),
    SetupTopic("`torch.compile`", _compiled, ("train.compile",)),
    SetupTopic("Activations", _activations, ("train.checkpoint_activations",)),
)
_OF_SEVERAL_PROCESSES = (
    SetupTopic("Gradients of several processes", _reduced, ("train.reduce",)),
    SetupTopic("Sharded parameters", _gathered, ("parallel.reshard",)),
)


def _headlines(
    facts: Facts, comparison: StudyComparison, verdicts: Sequence[VerdictRow]
) -> Iterator[Sentence]:
    yield from headline.scaling(facts, verdicts)
    yield from headline.rates(facts, comparison, verdicts)
    yield from headline.losses(facts, verdicts)


def rates(runs: Sequence[Run], cite: Cite) -> Iterator[str]:
    """How rates were measured; how a step was timed only of the runs of this program."""
    steps = sorted({run["warmup_steps"] for run in runs if run["step_seconds"] is not None})
    if not steps:
        yield "No rate was measured."
        return
    which = " or ".join(map(str, steps))
    own = [run for run in runs if not run["imported"]]
    if own:
        others = " in our own runs" if len(own) < len(runs) else ""
        clocked = all(run["data_wait_percentage"] is not None for run in own)  # else by older versions
        how = "by the device's own clock" if clocked else "with the device synchronised at both ends"
        yield f"A step is timed {how}{others}."
    yield escaped(f"The warm-up, here the first {which} steps, does not count: {_WARMUP_RULE}.")
    yield (
        "A run's rate is its tokens per step divided by the median of its seconds per step; rates are "
        f"derived from seconds and never averaged{cite('hoefler2015')}."
    )
    if palm := cite("chowdhery2022palm"):
        yield (
            "Model FLOPs utilisation is $(6N + 12LHQT)$ times tokens per second over the peak of the data "
            f"sheet{palm}, without a discount for causality; $N$ leaves out the input embedding."
        )


TASK = ReportTask(
    name="training",
    settings=_settings,
    answer=AnswerParts(
        ran=ran.trained,
        headlines=_headlines,
        limits=limits.of_training,
    ),
    writeup=WriteupParts(
        references=("touvron2023llama", "loshchilov2019adamw"),
        methods=rates,
        last=GroupColumn(
            "Final loss",
            lambda group: group.final_loss,
            ".4f",
            "the loss that of the last step in nats per token, of which repeats of a seed count once, as "
            "their mean",
        ),
    ),
    columns=(
        RATE,
        *AGAINST_BASELINE,
        MFU,
        MEMORY,
        OverviewColumn("Final loss", loss),
        OverviewColumn("Training time", time_to_train),
        N,
        OUTCOME,
    ),
    panels=(
        PanelSpec("Training loss, smoothed", "loss", absent="No run logged a loss.", chart="loss"),
        RATE_PANEL,
        MFU_PANEL,
        PanelSpec(
            "Efficiency, % of ideal",
            "scaling",
            efficiency_estimate,
            ".1f",
            instead=PanelSpec("Training time", "time", lambda line: line.group.training_seconds, ""),
            kind=scaling_kind,
        ),
    ),
    run_columns=(*RUN_RATES, RunColumn("Final loss", lambda run: number(run["final_loss"], ".4f"))),
    run_note=RATES_NOTE,
    passes="forward and backward",
    used="trains",
    not_used="does not train",
    metrics={
        "training_metrics": CarriedTable(
            TRAINING_METRICS,
            "Medians over the completed runs of each group, without the warm-up: tokens per second, "
            "the share of tokens that count in the loss, model FLOPs utilisation, and model TFLOP/s "
            "per GPU. There is no latency of inference: this study trained and did not infer.",
        ),
        "training_summary": CarriedTable(
            TRAINING_SUMMARY,
            "Medians over the completed runs of each group. The training loss is that of the last "
            "step, of which repeats of a seed count once, as their mean; the time is that of the "
            "whole run, with start and compilation.",
        ),
    },
)
