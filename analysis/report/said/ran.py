"""What was run, in one sentence."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from analysis.report.models import parameters
from analysis.report.said.sentence import Number, Sentence
from analysis.verdicts.groups import factors
from analysis.verdicts.values import device
from analysis.wording import group_name, listed
from model.record.units import counted

if TYPE_CHECKING:
    from analysis.report.facts import Facts, Row

_NAMED = 3  # backends that the sentence names; of more it says how many


def sentence(facts: Facts) -> Sentence:
    """Model, steps, device, groups and runs."""
    runs = facts.runs
    if facts.calls:
        return _calls(facts)
    did = _read(runs) if facts.infers else f"{_was(runs, _trained(runs))} {_length(runs)}"
    said = f"{_model(runs)} {did}{_where(runs)}{_groups(facts)}: {_count(facts)}."
    return Sentence(said, tuple(_numbers(runs)))


def _calls(facts: Facts) -> Sentence:
    """Of runs that time attention alone."""
    runs = facts.runs
    with_times = {row["run_id"] for row in facts.kernels if row["outcome"] == "completed"}
    shapes, timed = _shapes(runs), _shapes(run for run in runs if run["run_id"] in with_times)
    at = f"{len(timed):,d} of " if 0 < len(timed) < len(shapes) else ""
    planned = {run["planned_steps"] for run in runs}
    rounds = counted(1, "round") if planned == {1} else f"{span(planned)} rounds"
    said = (
        f"Attention alone {_was(runs, 'was timed')}{_where(runs)} at {at}{counted(len(shapes), 'shape')}, "
        f"both ways in {rounds} of all backends: {counted(len(runs), 'run')}, "
        f"of which {_done(runs):,d} completed."
    )
    counts = {"runs": len(runs), "completed runs": _done(runs), "shapes": len(shapes)}
    if at:
        counts["timed shapes"] = len(timed)
    numbers = (Number(what, count, None, None, what.split()[-1]) for what, count in counts.items())
    return Sentence(said, tuple(numbers))


def _shapes(runs: Iterable[Row]) -> set[tuple[str, bool]]:
    return {(run["config"]["call"]["shape"], run["config"]["call"]["causal"]) for run in runs}


def _was(runs: Sequence[Row], said: str) -> str:
    """`was trained`, but `was to be trained` where no run completed."""
    was, _, done = said.partition(" ")
    return said if _done(runs) else f"{was} to be {done}"


def _done(runs: Sequence[Row]) -> int:
    return sum(run["outcome"] == "completed" for run in runs)


def _model(runs: Sequence[Row]) -> str:
    sizes = _sizes(runs)
    if not sizes:
        return "A model of unknown size"
    if len(sizes) == 1:
        return f"A llama of {_short(sizes[0])} parameters"
    return f"Llamas of {_short(sizes[0])} to {_short(sizes[-1])} parameters"


def _sizes(runs: Sequence[Row]) -> list[int]:
    """How many parameters the models have, each number once."""
    return sorted({size for run in runs if (size := parameters(run["config"])) is not None})


def _trained(runs: Sequence[Row]) -> str:
    return "were trained" if len(_sizes(runs)) > 1 else "was trained"


def _read(runs: Sequence[Row]) -> str:
    """`read 60 batches of 1 prompt of 4,096 tokens and decoded 128 tokens after the last`."""
    asked = [run["config"]["inference"] for run in runs]
    steps, sizes, lengths = (
        span({each[key] for each in asked}) for key in ("steps", "batch_size", "prompt_length")
    )
    new = {each["new_tokens"] for each in asked}
    decode = "decoded" if _done(runs) else "decode"
    decoded = f" and {decode} {span(new)} token{'s' * (new != {1})} after the last" if any(new) else ""
    prompts = "1 prompt" if sizes == "1" else f"{sizes} prompts"
    read = "read" if _done(runs) else f"{'were' if len(_sizes(runs)) > 1 else 'was'} to read"
    return f"{read} {steps} batches of {prompts} of {lengths} tokens{decoded}"


def _short(count: int) -> str:
    """`8.03 billion`, to three digits."""
    for size, word in ((1e9, " billion"), (1e6, " million")):
        if count >= size:
            return f"{count / size:.3g}{word}"
    return f"{count:,d}"


def _length(runs: Sequence[Row]) -> str:
    steps = span(map(_planned, runs))
    tokens = span({_tokens(run) for run in runs})
    return f"for {steps or 'an unknown number of'} steps of {tokens or 'an unknown number of'} tokens"


def _planned(run: Row) -> int | None:
    """Its steps; of an imported run, whose log says no plan, those that it logged."""
    steps: int | None = (
        run["steps"] if run["planned_steps"] is None and run["imported"] else run["planned_steps"]
    )
    return steps


def _tokens(run: Row) -> int | None:
    sizes = (run["batch_size"], run["sequence_length"])
    return None if None in sizes else sizes[0] * sizes[1]


def span(values: Iterable[int | None]) -> str:
    """`8` or `8 to 4,096`, of those that are known; empty without any."""
    known = sorted(value for value in values if value is not None)
    return " to ".join(f"{value:,d}" for value in dict.fromkeys((known[0], known[-1]))) if known else ""


def _where(runs: Sequence[Row]) -> str:
    devices = Counter(found for run in runs if (found := device(run)))
    return f" on {' or '.join(sorted(devices))}" if devices else ""


def _groups(facts: Facts) -> str:
    axes = varying(facts.runs)
    many = len(facts.groups)
    if not axes or many == 1:
        return ""
    if axes == ["attention"]:
        few = listed([group_name(label) for label in facts.labels]) if many <= _NAMED else ""
        return f", under {few or f'each of {many} attention backends'}"
    of = f"{'values' if len(axes) == 1 else 'combinations'} of {listed(axes)}"
    cells = {tuple(str(factors(run).get(axis)) for axis in axes) for run in facts.runs}
    if len(cells) < many:  # as where `--set` made some of the runs
        return f", in {many} groups with {len(cells)} {of}, which differ in other settings too"
    return f", for each of {many} {of}"


def varying(runs: Sequence[Row]) -> list[str]:
    """The factors that have several values, seed and repeat apart, in the study's order."""
    found: dict[str, set[str]] = {}
    for run in runs:
        for factor, value in factors(run).items():
            found.setdefault(factor, set()).add(str(value))
    return [axis for axis, values in found.items() if len(values) > 1 and axis not in ("seed", "repeat")]


def _count(facts: Facts) -> str:
    sizes = {group.runs for group in facts.groups}
    each = f", {sizes.pop()} of each" if len(sizes) == 1 and len(facts.groups) > 1 else ""
    count = f"{counted(len(facts.runs), 'run')}{each}"
    if any(run["imported"] and run["planned_steps"] is None for run in facts.runs):
        return count  # whether they completed is unknown
    return f"{count}, of which {_done(facts.runs):,d} completed"


def _numbers(runs: Sequence[Row]) -> list[Number]:
    counts = {"runs": len(runs), "completed runs": _done(runs)}
    found = [Number(what, value, None, None, "runs") for what, value in counts.items()]
    for what, unit, values in (
        ("parameters", "parameters", {parameters(run["config"]) for run in runs}),
        ("planned steps", "steps", {*map(_planned, runs)}),
        ("tokens per step", "tokens", {_tokens(run) for run in runs}),
    ):
        if len(values) == 1 and (value := values.pop()) is not None:
            found.append(Number(what, value, None, None, unit))
    return found
