"""What is true of the raw records, by the formulas of docs/statistics.md and docs/schema.md, with numpy at most.

Nothing of the project is imported: a mistake there cannot be one here.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from datetime import datetime
from functools import cache, cached_property
from itertools import combinations, permutations
from math import asin, comb, exp, gamma, hypot, log, pi, sin, sqrt
from pathlib import Path
from statistics import fmean
from statistics import median as plain_median
from typing import Any, NamedTuple

import numpy as np

GIB = 2**30
SOURCE = "NVIDIA H100 datasheet, SXM, dense"
Ends = tuple[float, float] | None
Pairs = dict[tuple[int | None, int], float]  # a value of each run, by seed and repeat


class Value(NamedTuple):
    """A median, or a ratio, with the ends of its interval; None where it has none."""

    middle: float
    ends: Ends = None
    is_range: bool = (
        False  # its ends are the smallest and the largest of one run's records, or of several runs
    )
    extremes: Ends = None  # the smallest and the largest of several runs

    def over(self, other: Value) -> Value:
        """The ratio of two medians of runs that are apart: errors of logarithms add as squares, ranges do not."""
        assert self.ends and other.ends
        (down, up), (their_down, their_up) = (
            [abs(log(end / value.middle)) for end in value.ends] for value in (self, other)
        )
        ratio = self.middle / other.middle
        if self.is_range or other.is_range:
            return Value(ratio, (self.ends[0] / other.ends[1], self.ends[1] / other.ends[0]), is_range=True)
        interval = ratio / exp(hypot(down, their_up)), ratio * exp(hypot(up, their_down))
        return Value(ratio, interval)


class Attempt(NamedTuple):
    """One attempt's files."""

    number: int
    manifest: dict[str, Any]
    result: dict[str, Any]
    steps: list[dict[str, Any]]


class Run:
    """A run's files, and what follows from them."""

    constant: Sequence[str] = ()  # factors that are the same in all runs of its study

    def __init__(self, folder: Path) -> None:
        self.folder, self.plan = folder, _json(folder / "run.json")
        self.id, self.config = folder.name, self.plan["config"]
        self.attempts = [
            Attempt(
                int(path.name.rpartition("-")[2]),
                _json(path / "manifest.json"),
                result,
                _lines(path / "steps.jsonl"),
            )
            for path in sorted(folder.glob("attempt-*"))
            if (result := _json(path / "result.json"))
        ]
        self.key = (self.plan["config"].get("seed"), self.plan["repeat"])
        outcomes = [attempt.result["outcome"] for attempt in self.attempts if attempt.result]
        self.outcome = "completed" if "completed" in outcomes else outcomes[-1] if outcomes else None
        self.done = self.outcome == "completed"

    @property
    def expected(self) -> str:
        """The outcome that it should have: of several the one that it has, else the first."""
        several = self.plan.get("also_expected", ())
        return str(self.outcome if self.outcome in several else self.plan["expected_outcome"])

    @property
    def label(self) -> str:
        """What the study calls it, or what varies, the seed apart."""
        if self.plan.get("label"):
            return str(self.plan["label"])
        factors = {
            name: value
            for name, value in self.plan["factors"].items()
            if name not in ("seed", "repeat", *self.constant)
        }
        return ", ".join(
            str(value) if name == "attention" else f"{name.rpartition('.')[2]}={worded(value)}"
            for name, value in sorted(factors.items())
        )

    @cached_property
    def measured(self) -> Attempt:
        """The attempt that decides, or the last one before it on the run's own processes."""
        deciding = next(
            (attempt for attempt in reversed(self.attempts) if attempt.result.get("outcome") == "completed"),
            self.attempts[-1],
        )
        candidates = [
            attempt
            for attempt in self.attempts
            if attempt.number <= deciding.number and not attempt.manifest.get("parallel")
        ]
        return candidates[-1]

    @cached_property
    def steps(self) -> list[tuple[Attempt, dict[str, Any]]]:
        """Each step once: what a later attempt did again counts from there."""
        records: list[tuple[Attempt, dict[str, Any]]] = []
        for attempt in self.attempts:
            first = min((record["step"] for record in attempt.steps), default=0)
            records = [entry for entry in records if entry[1]["step"] < first] if attempt.steps else records
            records += [(attempt, record) for record in attempt.steps]
        return records

    @cached_property
    def warmup(self) -> int:
        """Steps that are not counted at the beginning."""
        if "inference" in self.config:
            return int(self.config["inference"]["warmup_steps"])
        planned = self.config.get("train", {}).get("steps")
        return max(1, min(10, planned // 10)) if planned else 10

    @cached_property
    def counted(self) -> list[dict[str, Any]]:
        """The records after the warm-up, without the first one after a checkpoint, on the run's own processes."""
        return [
            record
            for attempt, record in self.steps
            if record["step"] - record["steps"] >= self.warmup
            and record["step"] - record["steps"] != attempt.manifest.get("resumed_step")
            and not attempt.manifest.get("parallel")
        ]

    @cached_property
    def seconds(self) -> float:
        """Of the median step."""
        return median([record["step_seconds"] for record in self.counted])

    @cached_property
    def tokens(self) -> float:
        """Of a step."""
        counted = self.counted
        return float(sum(record["tokens"] for record in counted) / sum(record["steps"] for record in counted))

    @cached_property
    def millijoules(self) -> float | None:
        """Of a token, by the counted records whose last reading of the counter is of a second or more."""
        windows = [
            record
            for record in self.counted
            if record.get("power_joules") and record["step"] - record["power_steps"] >= self.warmup
        ]
        tokens = sum(record["tokens"] / record["steps"] * record["power_steps"] for record in windows)
        return float(1000 * sum(record["power_joules"] for record in windows) / tokens) if windows else None

    @property
    def gpus(self) -> int:
        """Of the measured attempt."""
        return int(self.measured.manifest["gpus"])

    @cached_property
    def flop(self) -> float:
        """FLOP per token: 6 N + 12 L H Q T of training, 2 N + 4 L H Q T of a prompt, whose head counts once."""
        model = self.config["model"]
        dim, kv = model["dim"], model["dim"] // model["heads"] * model["kv_heads"]
        block = 2 * dim * dim + 2 * dim * kv + 3 * dim * model["ffn_dim"] + 2 * dim
        body, head = model["layers"] * block + dim, model["vocab_size"] * dim
        if "inference" in self.config:
            length = self.config["inference"]["prompt_length"]
            return float(2 * body + 2 * head / length + 4 * model["layers"] * dim * length)
        return float(6 * (body + head) + 12 * model["layers"] * dim * self.config["train"]["sequence_length"])

    @property
    def parameters(self) -> int:
        """All of them."""
        model = self.config["model"]
        dim, kv = model["dim"], model["dim"] // model["heads"] * model["kv_heads"]
        block = 2 * dim * dim + 2 * dim * kv + 3 * dim * model["ffn_dim"] + 2 * dim
        return int(model["layers"] * block + dim + 2 * model["vocab_size"] * dim)

    def mfu(self, seconds: float) -> float | None:
        """Percent, at a time per step; None where the peak is not known."""
        peak = self.measured.manifest["peak_flops"]
        return 100 * self.flop * self.tokens / seconds / (self.gpus or 1) / peak if peak else None

    @cached_property
    def final_loss(self) -> float | None:
        """At the last step."""
        losses = {record["step"]: record.get("loss") for _, record in self.steps}
        return losses[max(losses)] if losses else None

    @property
    def peak_gib(self) -> float:
        """Of the measured attempt."""
        peak = max((record["memory_bytes"] or 0 for record in self.measured.steps), default=0)
        return max(peak, self.measured.result.get("peak_memory_bytes") or 0) / GIB

    @cached_property
    def training(self) -> float:
        """Seconds of the steps alone, each once."""
        return float(sum(record["step_seconds"] * record["steps"] for _, record in self.steps))

    @cached_property
    def wall(self) -> float:
        """Seconds of its attempts, without the time between them."""
        return float(sum(attempt.result["wall_seconds"] for attempt in self.attempts))

    @property
    def start_up(self) -> float:
        """Seconds of each attempt before its first step."""
        total = 0.0
        for attempt in self.attempts:
            first = attempt.steps[0]
            elapsed = (
                datetime.fromisoformat(first["time"]) - datetime.fromisoformat(attempt.manifest["started_at"])
            ).total_seconds()
            total += elapsed - first["step_seconds"] * first["steps"]
        return total

    @property
    def device(self) -> str:
        """Name of its GPU."""
        return str(self.measured.manifest["device_name"])

    @property
    def began(self) -> str:
        """When its first attempt started."""
        return str(self.attempts[0].manifest["started_at"])

    @property
    def ended(self) -> str:
        """When its last attempt ended."""
        return str(self.attempts[-1].result["ended_at"])

    @cached_property
    def kernels(self) -> list[dict[str, Any]]:
        """Calls of attention alone: a row for each backend, direction and mode."""
        return list(_json(self.folder / "attempt-1" / "kernels.json").get("times", []))

    @cached_property
    def sizes(self) -> tuple[int, int, int, int]:
        """Batch, tokens, heads and head dim of a call."""
        batch, length, heads, dim = (int(part[1:]) for part in self.config["call"]["shape"].split())
        return batch, length, heads, dim

    @cached_property
    def profile(self) -> dict[str, float]:
        """Seconds of each part of a profiled step."""
        parts = _json(self.folder / "attempt-1" / "profile.json").get("parts", [])
        return {part["part"]: part["seconds"] for part in parts}

    def floor(self, phase: str, part: str = "") -> float:
        """The least seconds of a step, or of one part of it."""
        floor = self.measured.manifest.get("floor") or []
        return float(
            sum(row["seconds"] for row in floor if row["phase"] == phase and part in ("", row["part"]))
        )

    @property
    def decoded(self) -> list[float]:
        """Seconds of each decoded position."""
        return [record["seconds"] for record in _lines(self.folder / "attempt-1" / "decode.jsonl")]


class Log(Run):
    """A run that another program logged in a CSV file, with what its mapping says."""

    def __init__(self, file: Path, mapping: dict[str, Any]) -> None:
        head, *rows = (line.split(",") for line in file.read_text().splitlines())
        names = {column: quantity for quantity, column in mapping["columns"].items()}
        values = [{names[name]: float(cell) for name, cell in zip(head, row, strict=True)} for row in rows]
        steps = [{"steps": 1, "memory_bytes": None, **row, "step": int(row["step"])} for row in values]
        constants = {
            **mapping["constants"],
            "peak_flops": 989.4e12,
            "host": None,
            "peak_source": SOURCE,
        }  # of an H100's data sheet
        self.config = {"attention": file.stem, **mapping["config"]}
        self.plan = {
            "factors": {"attention": file.stem},
            "design": None,
            "repeat": 1,
            "expected_outcome": "completed",
        }
        self.attempts = [
            Attempt(1, {**constants, "device_name": constants["gpu"]}, {"outcome": "completed"}, steps)
        ]
        self.id, self.folder = file.stem, file.with_suffix("")
        self.key, self.outcome, self.done = (None, 1), "completed", True


def corrected(groups: dict[str, Pairs]) -> dict[frozenset[str], float]:
    """p values of all pairs of groups of several runs, corrected after Holm."""
    raw: dict[frozenset[str], float] = {}
    for one, other in combinations([label for label, own in groups.items() if len(own) > 1], 2):
        mean, error, freedom = log_ratio(groups[one], groups[other])
        raw[frozenset((one, other))] = 2 * t_tail(abs(mean) / error, freedom) if error else float(mean == 0)
    adjusted, maximum = {}, 0.0
    for rank, pair in enumerate(sorted(raw, key=raw.__getitem__)):
        adjusted[pair] = maximum = max(maximum, min(1.0, raw[pair] * (len(raw) - rank)))
    return adjusted


class Study:
    """The runs of a folder, or of logs with their mapping."""

    def __init__(self, folder: Path, mapping: dict[str, Any] | None = None) -> None:
        self.name, self.imported = folder.name, mapping is not None
        self.runs: list[Run] = [Run(path.parent) for path in sorted(folder.glob("*/run.json"))]
        if mapping:
            self.runs = [Log(file, mapping) for file in sorted(folder.glob("*.csv"))]
        self.design = self.runs[0].plan["design"] or {}
        factors = [run.plan["factors"] for run in self.runs]
        for run in self.runs if len({run.plan.get("group") for run in self.runs}) > 1 else ():
            run.constant = [
                name
                for name in factors[0]
                if name != "attention" and len({str(settings.get(name)) for settings in factors}) == 1
            ]
        self.task = self.runs[0].config.get("task", "training")
        self.done = [run for run in self.runs if run.done]

    @cache  # noqa: B019 - the studies of a test session
    def certificate(self, run: Run) -> dict[str, Any]:
        """The certificate that a run's attempt names."""
        return self.certificate_of_key(run, run.measured.manifest.get("certificate"))

    def certificate_of_key(self, run: Run, key: str | None) -> dict[str, Any]:
        """The certificate of a key, beside a run's study."""
        return dict(_json(run.folder.parents[1] / ".certificates" / f"{key}.json"))

    @cached_property
    def groups(self) -> dict[str, list[Run]]:
        """The runs by label, in the study's order."""
        groups: dict[str, list[Run]] = {}
        for run in self.runs:
            groups.setdefault(run.label, []).append(run)
        return groups

    def completed(self, label: str) -> list[Run]:
        """Those of a group that completed."""
        return [run for run in self.groups[label] if run.done]

    @cached_property
    def wrong(self) -> list[str]:
        """Groups of imported logs whose loss over the last fifth is far from the median of the others."""
        if not self.imported:
            return []
        losses = {
            label: fmean(record["loss"] for record in runs[0].attempts[0].steps[-20:])
            for label, runs in self.groups.items()
        }
        return [label for label in losses if abs(losses[label] - arithmetic_median(losses.values())) > 0.1]

    @property
    def measured(self) -> list[str]:
        """The groups with a completed run that has steps."""
        return [label for label in self.groups if any(run.counted for run in self.completed(label))]

    @property
    def baseline(self) -> str | None:
        """The group that all others are compared with; None where there are several such groups."""
        labels = [label for label in self.groups if self.is_baseline(label)]
        return labels[0] if len(labels) == 1 else None

    def is_baseline(self, label: str) -> bool:
        """Whether others are compared with it."""
        factors, baseline = self.groups[label][0].plan["factors"], self.design.get("baseline") or {}
        return bool(baseline) and all(factors.get(name) == value for name, value in baseline.items())

    def settings(self, label: str) -> dict[str, Any]:
        """The factors of a group."""
        factors = self.groups[label][0].plan["factors"]
        return {name: value for name, value in factors.items() if name not in ("seed", "repeat")}

    @cache  # noqa: B019 - the studies of a test session
    def against(self, label: str) -> str | None:
        """The group that it is compared with: equal, but for what a baseline has."""
        baseline = self.design.get("baseline")
        if not baseline or self.is_baseline(label):
            return None
        expected_settings = self.settings(label) | baseline
        return next((other for other in self.groups if self.settings(other) == expected_settings), None)

    @cached_property
    def steps(self) -> dict[tuple[str, str], str]:
        """By (setting, group without it): the group that has it and is otherwise the same; where one lacks others."""
        baseline = self.design.get("baseline") or {}
        pairs = {}
        for label, base_label in permutations(self.groups, 2):
            settings, base_settings = self.settings(label), self.settings(base_label)
            differing = [name for name in settings if settings[name] != base_settings.get(name)]
            if (
                len(differing) == 1
                and (name := differing[0]) in baseline
                and base_settings[name] == baseline[name]
            ):
                pairs[self.text_of(name, settings[name]), base_label] = label
        return (
            pairs
            if any(not self.is_baseline(base_label) for _, base_label in pairs) and len(baseline) > 1
            else {}
        )

    def text_of(self, name: str, value: Any) -> str:
        """A setting by the last part of its name."""
        return str(value) if name == "attention" else f"{name.rpartition('.')[2]}={worded(value)}"

    @cache  # noqa: B019 - the studies of a test session
    def over(self, label: str, value: Callable[[Run, float], float]) -> Value:
        """A rate or a time: over runs, or of the single run's records."""
        runs = self.completed(label)
        if len(runs) > 1:
            return over_runs([value(run, run.seconds) for run in runs])
        seconds = [record["step_seconds"] for record in runs[0].counted]
        ends = over_records(seconds)
        middle = value(runs[0], runs[0].seconds)
        interval = ends and _sorted(value(runs[0], ends[0]), value(runs[0], ends[1]))
        return Value(middle, interval, ends == (min(seconds), max(seconds)) and ends[0] < ends[1])

    @cache  # noqa: B019 - the studies of a test session
    def per_token(self, label: str) -> Pairs:
        """Seconds per token of each completed run."""
        return {run.key: run.seconds / run.tokens for run in self.completed(label)}

    @cache  # noqa: B019 - the studies of a test session
    def rate_ratio(self, label: str, other: str = "") -> Value:
        """The rate over the baseline's or another's, with a 95 % interval; 90 % where a margin is stated."""
        baseline = other or self.against(label)
        assert baseline
        own, base = self.per_token(label), self.per_token(baseline)
        if min(len(own), len(base)) == 1:
            runs = {run.key: run for run in self.completed(label)}
            (key,) = [key for key in own if key in base][:1]
            base_run = next(run for run in self.completed(baseline) if run.key == key)
            values = []
            for run in (runs[key], base_run):
                records = [record["step_seconds"] / run.tokens for record in run.counted]
                if not (ends := over_records(records)):
                    return Value(median(base.values()) / median(own.values()))
                is_range = ends == (min(records), max(records)) and ends[0] < ends[1]
                values.append(Value(median(records), ends, is_range))
            return values[1].over(values[0])
        confidence = 0.90 if self.design["margins"].get("tokens_per_second") else 0.95
        mean, error, freedom = log_ratio(own, base)
        half_width = t_quantile((1 + confidence) / 2, freedom) * error
        return Value(exp(mean), (exp(mean - half_width), exp(mean + half_width)))

    @cached_property
    def holm(self) -> dict[frozenset[str], float]:
        """p values of all pairs of groups that have repeats, corrected after Holm."""
        return corrected({label: self.per_token(label) for label in self.measured})

    @property
    def holm_of_decoding(self) -> dict[frozenset[str], float]:
        """The same of the seconds of a decoded token, of groups that decode."""
        times = {
            label: {run.key: plain_median(run.decoded) for run in self.completed(label) if run.decoded}
            for label in self.measured
        }
        return corrected({label: own for label, own in times.items() if own})

    @cache  # noqa: B019 - the studies of a test session
    def loss_difference(self, label: str) -> Value:
        """Mean difference over the last fifth of the steps, with a 90 % interval: over seeds, or one pair's records."""
        baseline = self.against(label)
        assert baseline
        by_seed: list[dict[int, dict[int, float]]] = []
        for group in (label, baseline):
            runs: dict[int, list[dict[int, float]]] = {}
            for run in self.completed(group):
                runs.setdefault(run.key[0] or 0, []).append(
                    {record["step"]: record["loss"] for _, record in run.steps}
                )
            by_seed.append(
                {
                    seed: {s: fmean(curve[s] for curve in curves) for s in curves[0]}
                    for seed, curves in runs.items()
                }
            )
        own, base = by_seed
        pairs = [
            [own[seed][step] - base[seed][step] for step in sorted(own[seed]) if step > 0.8 * max(own[seed])]
            for seed in own
            if seed in base
        ]
        means = [fmean(pair) for pair in pairs]
        if len(means) > 1:
            half_width = t_quantile(0.95, len(means) - 1) * deviation(means) / sqrt(len(means))
        elif len(pairs[0]) < 24:
            return Value(means[0])
        else:
            freedom, error = _batch_error(np.array(pairs[0]))
            half_width = t_quantile(0.95, freedom) * error
            half_width += self._noise((label, baseline))
        return Value(fmean(means), (fmean(means) - half_width, fmean(means) + half_width))

    def _noise(self, labels: Sequence[str]) -> float:
        """By how much the spread of repeats of a seed widens the interval of one pair."""
        squares, freedom = 0.0, 0
        for label in labels:
            by_seed: dict[int, list[float]] = {}
            for run in self.completed(label):
                losses = [
                    record["loss"]
                    for _, record in run.steps
                    if record["step"] > 0.8 * run.steps[-1][1]["step"]
                ]
                by_seed.setdefault(run.key[0] or 0, []).append(fmean(losses))
            for means in by_seed.values():
                squares += sum((mean - fmean(means)) ** 2 for mean in means)
                freedom += len(means) - 1
        return t_quantile(0.95, freedom) * sqrt(2 * squares / freedom) if freedom else 0.0


def worded(value: object) -> str:
    """A value as YAML has it."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def _json(path: Path) -> Any:
    try:
        return json.loads(path.read_text())
    except (FileNotFoundError, json.JSONDecodeError):
        return {}


def _lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def _sorted(one: float, other: float) -> tuple[float, float]:
    return min(one, other), max(one, other)


def median(values: Iterable[float]) -> float:
    """The middle value; of an even number the geometric mean of the two in the middle."""
    ordered = sorted(values)
    return sqrt(ordered[(len(ordered) - 1) // 2] * ordered[len(ordered) // 2])


def arithmetic_median(values: Iterable[float]) -> float:
    """The same for losses, which are compared by their difference."""
    return float(np.median(list(values)))


def deviation(values: Sequence[float]) -> float:
    """Standard deviation, with n - 1."""
    return float(np.std(values, ddof=1))


def over_runs(values: Sequence[float]) -> Value:
    """Median; t interval of the logarithms of two to five runs, order statistics of six or more."""
    count = len(values)
    if count == 1:
        return Value(values[0])
    if count < 6:
        logs = [log(value) for value in values]
        half_width = t_quantile(0.975, count - 1) * deviation(logs) / sqrt(count)
        interval = exp(fmean(logs) - half_width), exp(fmean(logs) + half_width)
        return Value(median(values), interval, extremes=(min(values), max(values)))
    # Hettmansperger and Sheather: between the intervals of the k-th and the next order statistics.
    coverage = [1 - 2 * sum(comb(count, i) for i in range(rank)) / 2**count for rank in range(count // 2 + 1)]
    rank = max(rank for rank in range(1, count // 2 + 1) if coverage[rank] >= 0.95)
    share = (coverage[rank] - 0.95) / (coverage[rank] - coverage[rank + 1])
    weight = (count - rank) * share / (rank + (count - 2 * rank) * share)
    logs = sorted(map(log, values))
    low = (1 - weight) * logs[rank - 1] + weight * logs[rank]
    high = (1 - weight) * logs[count - rank] + weight * logs[count - rank - 1]
    return Value(median(values), (exp(low), exp(high)), extremes=(min(values), max(values)))


def over_records(values: Sequence[float]) -> Ends:
    """Interval of the median of one run's records by batch means of signs; None below 24 records."""
    if len(values) < 24:
        return None
    series = np.array(values)
    freedom, error = _batch_error(np.sign(series - np.median(series)), signs=True)
    count, logs = len(values), np.log(np.sort(series))
    half_width = min(t_quantile(0.975, freedom) * error * count / 2, (count - 1) / 2)
    low, high = np.interp(
        [(count - 1) / 2 - half_width, (count - 1) / 2 + half_width], np.arange(count), logs
    )
    if half_width == (count - 1) / 2:
        return min(values), max(values)
    return exp(low), exp(high)


def _batch_error(series: np.ndarray, signs: bool = False) -> tuple[float, float]:
    """Degrees of freedom and standard error of the mean of correlated values, from 24 to 47 batches."""
    length = 1
    while len(series) // (2 * length) >= 24:
        length *= 2
    count = len(series) // length
    batches = series[len(series) - count * length :].reshape(count, length).mean(axis=1)
    residuals = batches - batches.mean()
    squares = float(residuals @ residuals)
    raw = float(residuals[1:] @ residuals[:-1]) / squares if squares else 0.0
    rho = min(1.0, max(-1.0, (count * raw + 2) / (count - 8)))
    arcs = signs and length == 1  # signs of an autoregression are correlated as 2 / pi arcsin(r^k)
    rho = min(0.97, max(-0.4, sin(pi / 2 * rho) if arcs else rho))
    lags = [(2 / pi * asin(rho**lag) if arcs else rho**lag) * (1 - lag / count) for lag in range(1, count)]
    inflation = 1 + 2 * sum(lags)
    error = sqrt(squares / (count - 1) * inflation * length / len(series))
    return max(count / inflation - 1, 1), error


def log_ratio(own: Pairs, base: Pairs) -> tuple[float, float, float]:
    """Mean of the log ratio of rates, its standard error and degrees of freedom: paired where half have partners."""
    common = [key for key in own if key in base]
    if len(common) > 1 and 2 * len(common) >= max(len(own), len(base)):
        logs = [log(base[key] / own[key]) for key in common]
        return fmean(logs), deviation(logs) / sqrt(len(logs)), len(logs) - 1
    own_logs, base_logs = ([log(value) for value in side.values()] for side in (own, base))
    error = sqrt(deviation(own_logs) ** 2 / len(own_logs) + deviation(base_logs) ** 2 / len(base_logs))
    return fmean(base_logs) - fmean(own_logs), error, min(len(own_logs), len(base_logs)) - 1


def t_tail(statistic: float, freedom: float) -> float:
    """P(T > t) of Student's distribution, by Simpson's rule on its angle."""
    angle, intervals = np.arctan(statistic / sqrt(freedom)), 4000
    angles = np.linspace(angle, pi / 2, intervals + 1)
    weights = np.ones(intervals + 1)
    weights[1:-1:2], weights[2:-1:2] = 4, 2
    values = np.maximum(np.cos(angles), 0) ** (freedom - 1)
    scale = gamma((freedom + 1) / 2) / (sqrt(pi) * gamma(freedom / 2))
    return float(scale * (weights @ values) * (pi / 2 - angle) / intervals / 3)


@cache
def t_quantile(probability: float, freedom: float) -> float:
    """Quantile of Student's distribution, by bisection."""
    low, high = 0.0, 1e4
    for _ in range(80):
        middle = (low + high) / 2
        low, high = (middle, high) if t_tail(middle, freedom) > 1 - probability else (low, middle)
    return (low + high) / 2


@cache
def drift(study: Study) -> tuple[float, float, float, float, str]:
    """Change from the first block to the last, ends of its interval, p value and what it is of: a line through means.

    These are over the groups that share most runs in the same blocks.
    """
    cells = {
        (label, run.plan["block"]): log(run.seconds / run.tokens)
        for label in study.measured
        for run in study.completed(label)
    }
    candidates = []
    for label in study.measured:
        blocks = sorted(block for group, block in cells if group == label)
        groups = [group for group in study.measured if all((group, block) in cells for block in blocks)]
        candidates.append((len(blocks) * len(groups) * (len(blocks) > 2), len(blocks), blocks, groups))
    _, _, blocks, groups = max(candidates)
    means = np.array([fmean(cells[label, block] for label in groups) for block in blocks])
    positions = np.array(blocks, dtype=float) - fmean(blocks)
    slope = float(positions @ means) / float(positions @ positions)
    residuals = means - means.mean() - slope * positions
    freedom = len(blocks) - 2
    error = sqrt(float(residuals @ residuals) / freedom / float(positions @ positions))
    span, half_width = blocks[-1] - blocks[0], t_quantile(0.975, freedom) * error
    change, low, high = (exp(span * value) - 1 for value in (slope, slope - half_width, slope + half_width))
    block_count, partial = len({block for _, block in cells}), len(study.measured) - len(groups)
    description = f"{len(blocks)}{f' of {block_count}' if block_count > len(blocks) else ''} blocks"
    description += (
        f", without {partial} group{'s' * (partial > 1)} that did not run in all of them" if partial else ""
    )
    return change, low, high, 2 * t_tail(abs(slope) / error, freedom), description


@cache
def gpu_effect(study: Study) -> tuple[int, float, Ends, float]:
    """GPUs, how much longer the slower of two takes, with its interval, and p: least squares by group and GPU."""
    runs = [run for label in study.measured for run in study.completed(label)]
    gpus = sorted({run.measured.manifest["gpu_uuid"] for run in runs})
    assert len(gpus) == 2
    columns = [[run.label == label for label in study.measured] for run in runs]
    design = np.array(
        [[*row, run.measured.manifest["gpu_uuid"] == gpus[1]] for row, run in zip(columns, runs, strict=True)]
    )
    logs = np.array([log(run.seconds / run.tokens) for run in runs])
    inverse = np.linalg.inv(design.T.astype(float) @ design)
    fitted = inverse @ design.T @ logs
    residuals = logs - design @ fitted
    freedom = len(runs) - design.shape[1]
    error = sqrt(float(residuals @ residuals) / freedom * float(inverse[-1, -1]))
    effect, half_width = abs(float(fitted[-1])), t_quantile(0.975, freedom) * error
    ends = (exp(max(0.0, effect - half_width)) - 1, exp(effect + half_width) - 1)
    return len(gpus), exp(effect) - 1, ends, 2 * t_tail(effect / error, freedom)


@cache
def tiers(study: Study) -> list[set[str]]:
    """The largest sets of groups with repeats of which no test tells two apart, from the fastest."""
    p_values = study.holm
    labels = sorted({label for pair in p_values for label in pair})
    times = {label: study.per_token(label) for label in labels}
    names = sorted(labels, key=lambda label: -sum(log_ratio(times[label], times[one])[0] for one in labels))
    sets = [
        set(subset)
        for size in range(len(names), 0, -1)
        for subset in combinations(names, size)
        if all(p_values[frozenset(pair)] > 0.05 for pair in combinations(subset, 2))
    ]
    maximal = [one for one in sets if not any(one < other for other in sets)]
    return sorted(maximal, key=lambda one: sorted(map(names.index, one)))


@cache
def time_parts(run: Run) -> dict[str, float]:
    """Seconds of start-up, the first steps' extra, the other steps, what an earlier attempt lost, and the rest."""
    first = {id(attempt): attempt.steps[0] for attempt in run.attempts if attempt.steps}
    extra = sum(max(0.0, record["step_seconds"] - run.seconds) * record["steps"] for record in first.values())
    parts = {"first step's extra": extra, "steps": run.training - extra}
    if "wall_seconds" not in run.attempts[-1].result:
        return parts
    lost = 0.0
    for attempt in run.attempts[:-1]:
        records = [record for owner, record in run.steps if owner is attempt]
        end_time = datetime.fromisoformat(attempt.result["ended_at"])
        lost += (end_time - datetime.fromisoformat(records[-1]["time"])).total_seconds()
    parts = {"start-up": run.start_up, **parts, "lost with an earlier attempt": lost}
    return {**parts, "rest": run.wall - sum(parts.values())}


@cache
def middle_run(study: Study, label: str) -> Run:
    """The run of a group whose time is the median; the shorter of the middle two."""
    runs = sorted(study.completed(label), key=lambda run: sum(time_parts(run).values()))
    return runs[(len(runs) - 1) // 2]


@cache
def rates_over_steps(study: Study, label: str, counted: bool = False) -> dict[int, float]:
    """Tokens over seconds of all runs of a group in spans of steps, at most a hundred, by the last step of each."""
    runs = [run for run in study.groups[label] if run.steps]
    longest = max(
        record["step"] for group in study.groups.values() for run in group for _, record in run.steps
    )
    width = -(-longest // 100)
    spans: dict[int, list[float]] = {}
    excluded: set[int] = set()
    for run in runs:
        for _, record in run.steps:
            span = (record["step"] - 1) // width
            sums = spans.setdefault(span, [0.0, 0.0, 0.0])
            sums[0] += record["tokens"]
            sums[1] += record["step_seconds"] * record["steps"]
            sums[2] = max(sums[2], record["step"])
            if record not in run.counted:
                excluded.add(span)
    return {
        int(last_step): tokens / seconds
        for span, (tokens, seconds, last_step) in spans.items()
        if not counted or span not in excluded
    }


def smoothed(values: dict[int, float], share: int) -> dict[int, float]:
    """By step, the mean over so manieth a part of the steps around."""
    steps, half_width = list(values), len(values) // share // 2
    return {
        step: fmean(
            values[neighbour] for neighbour in steps[max(0, index - half_width) : index + half_width + 1]
        )
        for index, step in enumerate(steps)
    }


@cache
def loss_differences(study: Study, label: str) -> dict[int, float]:
    """By step: the loss minus the baseline's mean of the same seed, or the median of the other groups; means over runs."""

    def losses(run: Run) -> dict[int, float]:
        return {record["step"]: record["loss"] for _, record in run.steps}

    differences: list[dict[int, float]] = []
    for run in study.completed(label):
        run_losses = losses(run)
        if baseline := study.against(label) or (study.is_baseline(label) and label):
            others = [losses(other) for other in study.completed(baseline) if other.key[0] == run.key[0]]
            middle: Callable[[list[float]], float] = fmean
        else:
            others = [losses(other) for other in study.done if other.label != label]
            middle = arithmetic_median
        if others:
            differences.append(
                {step: run_losses[step] - middle([other[step] for other in others]) for step in run_losses}
            )
    return (
        {step: fmean(curve[step] for curve in differences) for step in differences[0]} if differences else {}
    )
