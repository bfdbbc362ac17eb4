"""Which runs will not fit their GPU's memory, and what would make them fit. Runs are not refused for it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from model.config import RunConfig
from model.disk.record import Outcome, RunRecord
from model.measure.memory import is_counted, peak_memory
from model.measure.memory_inference import inference_memory
from model.units import counted, size
from runner.state.tasks import label

_NAMED = 3  # groups that are named one by one
_NEEDS = {"training": peak_memory, "inference": inference_memory}
_SAVE: tuple[dict[str, Any], ...] = (
    {"loss": "linear_cross_entropy"},
    {"checkpoint_activations": True},
    {"loss": "linear_cross_entropy", "checkpoint_activations": True},
)


def forecast(runs: Sequence[RunRecord], memory: int | None) -> Iterator[str]:
    """Lines for the user: what the runs need, and which of them need more than there is.

    Args:
        memory: of one GPU, in bytes; None if unknown.
    """
    found = {run.group: run for run in runs if run.config.device == "cuda" and run.config.task in _NEEDS}
    groups = {group: run for group, run in found.items() if is_counted(run.config)}
    if shared := len(found) - len(groups):
        said = counted(shared, "configuration")
        yield f"GPU memory: no estimate for {said} whose runs have several processes"
    needs = {group: _need(run.config) for group, run in groups.items()}
    if not needs:
        return
    least, most = size(min(needs.values())), size(max(needs.values()))
    whose = "run" if all(run.config.processes == 1 for run in groups.values()) else "GPU"
    yield f"GPU memory, estimated: {least if least == most else f'{least} to {most}'} per {whose}"
    large = [group for group, need in needs.items() if memory and need > memory]
    surprising = [group for group in large if groups[group].expected_outcome is not Outcome.OOM_GPU]
    for group in surprising[:_NAMED]:
        run = groups[group]
        yield (
            f"{_named(run)} will probably end as oom_gpu: it needs about {size(needs[group])}, but the "
            f"profile's GPUs have {size(memory or 0)}; {_instead(run.config, memory or 0)}"
        )
    if (more := len(surprising) - _NAMED) > 0:
        yield f"and so will {more} more"


def _named(run: RunRecord) -> str:
    """The label of a run's group: without seed and repeat."""
    axes = [axis for axis in run.factors if axis != "seed"]
    return label(run, axes) if axes else "each run"


def _need(config: RunConfig) -> int:
    return _NEEDS[config.task](config)


def _instead(config: RunConfig, memory: int) -> str:
    if not config.parallel.reshard:
        again = config.parallel.model_copy(update={"reshard": True})
        if _need(config.model_copy(update={"parallel": again})) <= memory:
            return "use --set parallel.reshard=true"
    section = {"training": "train"}.get(config.task, config.task)
    for saving in _savings(config):
        changed = getattr(config, section).model_copy(update=saving)
        if _need(config.model_copy(update={section: changed})) <= memory:
            return f"use {' '.join(f'--set {section}.{key}={_yaml(value)}' for key, value in saving.items())}"
    return "use a smaller model, or state `expect: oom_gpu`"


def _savings(config: RunConfig) -> Iterator[dict[str, Any]]:
    """What to set instead; what changes the study least comes first."""
    if config.task == "inference":
        yield from ({"batch_size": size} for size in _halved(config.inference.batch_size))
        yield from ({"prompt_length": length} for length in _halved(config.inference.prompt_length))
        return
    batch, length = config.train.batch_size // config.parallel.samples, config.train.sequence_length
    yield from _SAVE
    yield from ({"accumulate": count} for count in range(2, batch + 1) if batch % count == 0)
    yield from ({"sequence_length": shorter} for shorter in _halved(length))


def _halved(size: int) -> list[int]:
    """Half of it, a quarter, and so on down to 1."""
    return [size >> times for times in range(1, size.bit_length())]


def _yaml(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
