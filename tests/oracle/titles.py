"""What the headline of each figure may cite: true values of groups, by the name of the figure."""

from __future__ import annotations

from collections.abc import Callable
from statistics import fmean

import numpy as np

from tests.oracle import calls, frontiers, kinds, series
from tests.oracle.truth import Run, Study, Value, median

Values = Callable[[Study, str], list[float]]


def _rate(study: Study, label: str) -> list[float]:
    return [study.over(label, lambda run, seconds: run.tokens / seconds).middle]


def _mfu(study: Study, label: str) -> list[float]:
    value = kinds.mfu_of(study, label)
    tflops = study.over(
        label, lambda run, seconds: run.flop * run.tokens / seconds / (run.gpus or 1) / 1e12
    ).middle
    return [value.middle if value else tflops]


def _time(study: Study, label: str) -> list[float]:
    """The steps alone of the median run, in seconds or minutes, and all else in percent of them.

    Of all runs, and of the one to which it adds most.
    """
    runs = study.completed(label)
    training = median(run.training for run in runs)
    if study.imported:
        return [training]
    mean_ratio = sum(run.wall for run in runs) / sum(run.training for run in runs)
    largest_ratio = max(run.wall / run.training for run in runs)
    return [training, training / 60, 100 * (mean_ratio - 1), 100 * (largest_ratio - 1)]


def _loss(study: Study, label: str) -> list[float]:
    return [kinds.final_loss(study, label).middle, study.completed(label)[0].tokens]


def _loss_difference(study: Study, label: str) -> list[float]:
    """The largest difference from the baseline's mean of the same seed, or from the median of the others."""
    differences = []
    for run in study.completed(label):
        losses = _losses(run)
        others = [
            other
            for other in study.done
            if other.label == (study.against(label) or label) and other.key[0] == run.key[0]
        ]
        if study.imported:
            others = [other for other in study.done if other.label != label]
        if others:
            average = np.median if study.imported else np.mean
            reference = {step: float(average([_losses(other)[step] for other in others])) for step in losses}
            same_seed = [other for other in study.completed(label) if other.key[0] == run.key[0]]
            mean = {step: fmean(_losses(other)[step] for other in same_seed) for step in losses}
            differences += [
                max(abs(curve[step] - reference[step]) for step in losses) for curve in (losses, mean)
            ]
            differences.append(
                max(abs(losses[step] - _losses(other)[step]) for other in same_seed for step in losses)
            )
            differences.append(2 * differences[-3] if study.is_baseline(label) else differences[-3])
    return differences


def _losses(run: Run) -> dict[int, float]:
    return {record["step"]: record["loss"] for _, record in run.steps}


def _spread(study: Study, label: str) -> list[float]:
    """How far the quartiles of a run's counted steps are from its median, as rates, in percent."""
    spreads = []
    for run in study.completed(label):
        ends = np.quantile([record["step_seconds"] for record in run.counted], [0.25, 0.75])
        spreads.append(max(abs(100 * (run.seconds / float(end) - 1)) for end in ends))
    return spreads


def _decode_trend(study: Study, label: str) -> list[float]:
    """The last tenth of the positions against the first, in percent, by means and by medians."""
    changes = []
    for average in (np.mean, np.median):
        trends = [
            100 * (float(average(run.decoded[-3:])) / float(average(run.decoded[:3])) - 1)
            for run in study.completed(label)
        ]
        changes += [*trends, fmean(trends)]
    return changes


def _against(study: Study, label: str) -> list[float]:
    """Faster or slower than the baseline, in percent; and of the baseline's rate."""
    if study.against(label) not in study.measured:
        return []
    ratio = study.rate_ratio(label).middle
    return [abs(100 * (ratio - 1)), ratio]


def _scaling(study: Study, label: str) -> list[float]:
    share = kinds.efficiency(study, label)
    return [100 * share.middle, *(100 * end for end in share.ends or ())]


def _profile(study: Study, label: str) -> list[float]:
    parts = study.completed(label)[0].profile
    return [100 * max(parts.values()) / sum(parts.values())]


def _swept(value: Callable[[Study, str], float], ratio: bool) -> Values:
    """Of the largest batch over that of the smallest, or minus it; the batches, and the rates without a largest."""

    def values(study: Study, label: str) -> list[float]:
        axis = kinds.axes(study)[0]
        lines: dict[tuple[object, ...], dict[float, str]] = {}
        for group, runs in study.groups.items():
            factors = {
                name: value for name, value in runs[0].plan["factors"].items() if name not in ("seed", axis)
            }
            lines.setdefault(tuple(factors.values()), {})[runs[0].plan["factors"][axis]] = group
        positions = sorted({position for line in lines.values() for position in line})
        numbers: list[float] = [
            *positions,
            *(factor for line in lines for factor in line if isinstance(factor, (int, float))),
        ]
        for line in lines.values():
            if line.keys() >= {positions[0], positions[-1]} and {line[positions[0]], line[positions[-1]]} <= {
                *study.measured
            }:
                first, last = (value(study, line[position]) for position in (positions[0], positions[-1]))
                numbers.append(last / first if ratio else last - first)
        return numbers

    return values


def _kernel_share(study: Study, name: str) -> list[float]:
    """Percent of the 700 TFLOP/s that a large product reached, forward and backward."""
    rates = [calls.rate(study, calls.main(study), name, direction) for direction in ("forward", "backward")]
    return [100 * value.middle / calls.PRODUCT for value in rates if value]


def _middle(value: Value | None) -> list[float]:
    return [] if value is None else [value.middle]


def _along(value: series.ValueOf) -> Values:
    return lambda study, name: [
        estimate.middle for case in calls.cases(study) if (estimate := value(study, case, name))
    ]


def _known(value: float | None) -> list[float]:
    return [] if value is None else [value]


TITLES: dict[str, Values] = {
    "tokens_per_second": _rate,
    "mfu": _mfu,
    "time": _time,
    "step_time": lambda study, label: [study.over(label, lambda _run, seconds: seconds).middle],
    "memory": lambda study, label: [kinds.peak_of(study, label).middle],
    "energy": lambda study, label: [kinds.energy_of(study, label).middle],
    "loss": _loss,
    "loss_difference": _loss_difference,
    "tokens_over_steps": _spread,
    "prefill_latency": lambda study, label: [kinds.prefill_of(study, label).middle],
    "decode_latency": lambda study, label: (
        [value.middle] if (value := kinds.over_decoded(study, label)) else []
    ),
    "decode_positions": _decode_trend,
    "ratios": _against,
    "tokens_against_baseline": lambda study, label: [],
    "scaling_weak": _scaling,
    "step_profile": _profile,
    "sweep_tokens": _swept(lambda study, label: _rate(study, label)[0], ratio=True),
    "sweep_mfu": _swept(lambda study, label: _mfu(study, label)[0], ratio=True),
    "sweep_step_time": _swept(
        lambda study, label: study.over(label, lambda _run, seconds: seconds).middle, ratio=True
    ),
    "sweep_memory": _swept(lambda study, label: kinds.peak_of(study, label).middle, ratio=True),
    "sweep_loss": _swept(lambda study, label: kinds.final_loss(study, label).middle, ratio=False),
    "sweep_tokens_map": _rate,
    "sweep_mfu_map": _mfu,
    "sweep_step_time_map": lambda study, label: [study.over(label, lambda _run, seconds: seconds).middle],
    "sweep_memory_map": lambda study, label: [kinds.peak_of(study, label).middle],
    "sweep_loss_map": lambda study, label: [kinds.final_loss(study, label).middle],
    "time_saved": lambda study, label: _middle(kinds.time_saved(study, label)),
    "time_saved_lines": lambda study, label: [],
    "memory_saved": lambda study, label: _middle(kinds.memory_saved(study, label)),
    "memory_saved_lines": lambda study, label: [],
    "kernel_efficiency": _kernel_share,
    **{name: _along(figure.value) for name, figure in series.FIGURES.items()},
    "kernel_map": lambda study, name: [
        value.middle for case in series.mapped(study) if (value := calls.rate(study, case, name, "both"))
    ],
    "kernel_fp8": lambda study, name: [
        series.gain(study, *key).middle for key in series.gains(study) if key[0] == name
    ],
    "frontier_sequence_length": lambda study, label: _known(frontiers.frontiers(study)[label].largest),
    "frontier_sequence_length_memory": lambda study, label: frontiers.memory_errors(study),
}
