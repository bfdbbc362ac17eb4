"""What was run, and how it ended: as the study expected, which is a result, or otherwise."""

from __future__ import annotations

import textwrap
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from datetime import timedelta
from operator import itemgetter
from typing import TYPE_CHECKING

from analysis.report.answer.statement import Number, Sentence
from analysis.report.models import parameters
from analysis.report.topics import groups, options
from analysis.stats import grouped
from analysis.verdicts.groups import factors
from analysis.verdicts.values import devices
from analysis.wording import capital, group_name, listed
from model.record.case import FP8
from model.record.outcome import OUT_OF_MEMORY, Outcome
from model.record.units import counted

if TYPE_CHECKING:
    from analysis.report.backends import Backends
    from analysis.report.facts import Facts
    from analysis.report.rows import Run

_REASON = 320  # letters of a reason that a first page quotes
_NAMED = 3  # backends that the sentence names; of more it says how many
_PLACES = 8  # in the order of starting that a sentence lists
_APART = timedelta(seconds=1)  # between records of one launch at most: the next one needs longer to start


def of_any(facts: Facts) -> Sentence:
    """The task, the device, the configurations and their runs."""
    runs, done = _described(facts)
    names = listed([f"`{name}`" for name in sorted(facts.tasks)])
    text = f"{capital(names)} {_tense(runs, 'was run')}{_devices(runs)}{_groups(facts, done)}."
    return Sentence(text, _numbers(facts, done))


def trained(facts: Facts) -> Sentence:
    """The model, its steps, the device and the groups: of what completed, as far as anything did."""
    runs, done = _described(facts)
    steps, tokens = span(map(_planned_steps, runs)), span({_tokens_per_step(run) for run in runs})
    did = _tense(runs, "were trained" if len(_parameter_counts(runs)) > 1 else "was trained")
    did += f" for {steps or 'an unknown number of'} steps of {tokens or 'an unknown number of'} tokens"
    text = f"{_model_size(runs)} {did}{_devices(runs)}{_groups(facts, done)}."
    return Sentence(text, _numbers(facts, done))


def prompted(facts: Facts) -> Sentence:
    """The model, its prompts, the device and the groups."""
    runs, done = _described(facts)
    return Sentence(
        f"{_model_size(runs)} {_prompts(runs)}{_devices(runs)}{_groups(facts, done)}.", _numbers(facts, done)
    )


def _described(facts: Facts) -> tuple[Sequence[Run], Sequence[Run]]:
    """The runs that a sentence is about, and those that completed: where none did, it is about all."""
    done = [run for run in facts.runs if run["outcome"] == "completed"]
    return done or facts.runs, done


def _model_size(runs: Sequence[Run]) -> str:
    sizes = _parameter_counts(runs)
    if len(sizes) > 1:
        return f"Llamas of {_rounded(sizes[0])} to {_rounded(sizes[-1])} parameters"
    return f"A llama of {_rounded(sizes[0])} parameters" if sizes else "A model of unknown size"


def _numbers(facts: Facts, done: Sequence[Run]) -> tuple[Number, ...]:
    counts = {"runs": len(facts.runs), "completed runs": len(done)}
    numbers = [Number(what, "runs", value) for what, value in counts.items()]
    runs = done or facts.runs
    for what, unit, values in (
        ("parameters", "parameters", {parameters(run["config"]) for run in runs}),
        ("planned steps", "steps", {*map(_planned_steps, runs)}),
        ("tokens per step", "tokens", {_tokens_per_step(run) for run in runs}),
    ):
        if len(values) == 1 and (value := values.pop()) is not None:
            numbers.append(Number(what, unit, value))
    return tuple(numbers)


def called(facts: Facts) -> Sentence:
    """Shapes, rounds and runs of calls of attention alone."""
    runs = facts.runs
    done = [row for row in facts.kernels if row["outcome"] == "completed"]
    with_times, backends = ({row[name] for row in done} for name in ("run_id", "attention"))
    shapes, timed = _shapes(runs), _shapes(run for run in runs if run["run_id"] in with_times)
    at = f"{len(timed):,d} of " if 0 < len(timed) < len(shapes) else ""
    planned = {run["planned_steps"] for run in runs}
    rounds = counted(1, "round") if planned == {1} else f"{span(planned)} rounds"
    narrow = sum(run["config"]["call"].get("dtype") == FP8 for run in runs)
    ways = "forward and backward" if narrow < len(runs) else "forward alone"
    ways += " (of 8 bits forward alone)" if 0 < narrow < len(runs) else ""
    text = (
        f"Attention alone {_tense(runs, 'was timed')}{_devices(runs)} at {at}{counted(len(shapes), 'shape')}"
        f"{_cases(runs)}, {ways}, in {rounds}{' of all backends' * (len(backends) != 1)}"
    )
    if _completed(runs) < len(runs):
        text += f": {_completed(runs):,d} of {counted(len(runs), 'run')} completed"
    counts = {"runs": len(runs), "completed runs": _completed(runs), "shapes": len(shapes)}
    if at:
        counts["timed shapes"] = len(timed)
    numbers = (Number(what, what.split()[-1], count) for what, count in counts.items())
    return Sentence(f"{text}.", tuple(numbers))


def _shapes(runs: Iterable[Run]) -> set[str]:
    return {run["config"]["call"]["shape"] for run in runs}


def _cases(runs: Sequence[Run]) -> str:
    """`, 43 cases of shape, mask and precision`, where more than its shape sets a call apart; else empty."""
    calls = [run["config"]["call"] for run in runs]
    names = {"shape": "shape", "causal": "mask", "dtype": "precision", "dropout": "dropout", "tile": "tile"}
    values = {name: [call.get(name) or None for call in calls] for name in names}
    differ = [name for name in names if name == "shape" or len(set(values[name])) > 1]
    cases = set(zip(*(values[name] for name in differ), strict=True))
    what = listed([names[name] for name in differ])
    return f", {counted(len(cases), 'case')} of {what}" if differ[1:] else ""


def _tense(runs: Sequence[Run], words: str) -> str:
    """`was trained`, but `was to be trained` where no run completed."""
    was, _, done = words.partition(" ")
    return words if _completed(runs) else f"{was} to be {done}"


def _completed(runs: Sequence[Run]) -> int:
    return sum(run["outcome"] == "completed" for run in runs)


def _parameter_counts(runs: Sequence[Run]) -> list[int]:
    """How many parameters the models have, each number once, in order."""
    return sorted({size for run in runs if (size := parameters(run["config"])) is not None})


def _prompts(runs: Sequence[Run]) -> str:
    """`read 60 prompts of 4,096 tokens and decoded 128 tokens after the last`, or `60 batches of 2`."""
    asked = [run["config"]["inference"] for run in runs]
    steps, sizes, lengths = (
        span({config[key] for config in asked}) for key in ("steps", "batch_size", "prompt_length")
    )
    new = {config["new_tokens"] for config in asked} - {0}
    decode = "decoded" if _completed(runs) else "decode"
    alone = dict.fromkeys(run["label"] for run in runs if not run["config"]["inference"]["new_tokens"])
    but = f" (not {groups(list(alone))})" if alone else ""
    decoded = f" and {decode} {span(new)} token{'s' * (new != {1})} after the last{but}" if new else ""
    several = "s" * (steps != "1")
    prompts = (
        f"{steps} prompt{several}" if sizes == "1" else f"{steps} batch{several and 'es'} of {sizes} prompts"
    )
    read = "read" if _completed(runs) else f"{'were' if len(_parameter_counts(runs)) > 1 else 'was'} to read"
    return f"{read} {prompts} of {lengths} tokens{decoded}"


def _rounded(count: int) -> str:
    """`8.03 billion`, to three digits."""
    for size, word in ((1e9, " billion"), (1e6, " million")):
        if count >= size:
            return f"{count / size:.3g}{word}"
    return f"{count:,d}"


def _planned_steps(run: Run) -> int | None:
    """Its steps; of an imported run, whose log says no plan, those that it logged."""
    steps: int | None = (
        run["steps"] if run["planned_steps"] is None and run["imported"] else run["planned_steps"]
    )
    return steps


def _tokens_per_step(run: Run) -> int | None:
    batch, length = run["batch_size"], run["sequence_length"]
    return None if batch is None or length is None else batch * length


def span(values: Iterable[int | None]) -> str:
    """`8` or `8 to 4,096`, of those that are known; empty without any."""
    ordered = sorted(value for value in values if value is not None)
    return " to ".join(f"{value:,d}" for value in dict.fromkeys((ordered[0], ordered[-1]))) if ordered else ""


def _devices(runs: Sequence[Run]) -> str:
    """` on NVIDIA H200 (5 of them, one a run)`, ` on 1, 2 and 4 GPUs (NVIDIA H200)`."""
    cards = {run["device"] for run in runs if run["device"]}
    counts = sorted({run["gpus"] or 0 for run in runs if run["device"]})
    if len(cards) == 1 and len(counts) > 1 and counts[0] and all((run["nodes"] or 1) == 1 for run in runs):
        return f" on {listed([*map(str, counts)])} GPUs ({cards.pop()})"
    return f" on {' or '.join(names)}" if (names := devices(runs)) else ""


def _groups(facts: Facts, done: Sequence[Run]) -> str:
    """` under 9 of 10 attention backends, 5 runs each`."""
    axes, many = varying(facts.runs), len(facts.groups)
    counts = Counter(run["label"] for run in done)
    runs = span(counts.values())
    each = "" if not done else "one run" if runs == "1" else f"{runs} runs"
    if done and any(run["outcome"] is None for run in facts.runs):
        each = f"{runs} of {span(Counter(run['label'] for run in facts.runs).values())} planned runs"
    if many == 1:
        return f", in {each}" if each else ""
    each = f", {each} each" if each else ""
    of = f"{len(counts)} of {many}" if 0 < len(counts) < many else str(many)
    if axes == ["attention"]:
        labels = [label for label in facts.labels if label in counts or not done]
        few = (
            listed([group_name(label) for label in labels]) if many <= _NAMED and len(labels) == many else ""
        )
        return f" under {few or f'{of} attention backends'}{each}"
    cells = {tuple(str(factors(run).get(axis)) for axis in axes) for run in facts.runs}
    named = f" of {listed(axes)}" if 0 < len(axes) <= _NAMED else ""
    if axes and len(cells) < many:  # as where `--set` made some of the runs
        values = f"{len(cells)} {'values' if len(axes) == 1 else 'combinations'}{named}"
        return f" in {of} groups with {values}, which differ in other settings too{each}"
    return f" in {of} configurations{named}{each}"


def varying(runs: Sequence[Run]) -> list[str]:
    """The factors that have several values, seed and repeat apart, in the study's order."""
    by_factor: dict[str, set[str]] = {}
    for run in runs:
        for factor, value in factors(run).items():
            by_factor.setdefault(factor, set()).add(str(value))
    return [axis for axis, values in by_factor.items() if len(values) > 1 and axis not in ("seed", "repeat")]


def expected(runs: Sequence[Run]) -> list[Sentence]:
    """How many runs completed as expected, and each kind of failure that the study expected."""
    if any(run["imported"] for run in runs):  # nobody expected anything of a log
        planned = [run for run in runs if run["outcome"] == "completed" and run["planned_steps"] is not None]
        if not planned:
            return []
        goes = "goes" if len(planned) == 1 else "go"
        text = f"{len(planned):,d} of {counted(len(runs), 'log')} {goes} on to the last planned step."
        return [Sentence(text, (Number("logs with all steps", "runs", len(planned)),))]
    met = [run for run in runs if run["outcome"] and run["outcome"] == run["expected_outcome"]]
    done = [run for run in met if run["outcome"] == "completed"]
    ended = [run for run in met if run["outcome"] != "completed"]
    kinds = (
        (because, group) for (_, because), group in grouped(ended, itemgetter("outcome", "because")).items()
    )
    failures = [_ending(group, f"as the study expected{_reason(because)}") for because, group in kinds]
    if not done:
        return failures
    meant = sum(run["expected_outcome"] == "completed" for run in runs)
    if len(done) == len(runs):
        every = "The run" if len(runs) == 1 else f"All {len(runs):,d} runs"
        text = f"{every} completed, as the study expected."
    elif len(done) == meant:
        text = f"{len(done):,d} of {counted(len(runs), 'run')} completed, as the study expected."
    else:
        text = f"{len(done):,d} of the {counted(meant, 'run')} that the study expected to complete did."
    return [Sentence(text, (Number("runs completed", "runs", len(done)),)), *failures]


def without_plan(runs: Sequence[Run]) -> Iterator[Sentence]:
    """Imported runs whose logs say no plan: whether these completed is unknown."""
    logs = [
        run
        for run in runs
        if run["outcome"] == "completed" and run["imported"] and run["planned_steps"] is None
    ]
    if logs:
        which = "its log ends" if len(logs) == 1 else "their logs end"
        text = (
            f"Whether {counted(len(logs), 'run')} completed is unknown: {which} at step "
            f"{span({run['steps'] for run in logs})}, and nothing says how many steps were planned."
        )
        yield Sentence(text, (Number("logs without a planned end", "runs", len(logs)),))


def _reason(because: str | None) -> str:
    """The reason, after a colon; of a long one the beginning, as the run's page has the whole."""
    return f": {textwrap.shorten(because, _REASON, placeholder=' …').rstrip('.')}" if because else ""


def out_of_memory(facts: Facts) -> Iterator[Sentence]:
    """Backends that had no memory enough for attention alone. That is a result."""
    return _untimed(facts, OUT_OF_MEMORY, "ran out of memory in {runs} and was not timed there")


def _untimed(facts: Facts, outcomes: Sequence[str], form: str) -> Iterator[Sentence]:
    """Backends without times of attention alone, by outcome; an unsupported one says so itself."""
    timed = {(row["attention"], row["run_id"]) for row in facts.kernels if row["outcome"] == "completed"}
    gone = [row for row in facts.kernels if row["outcome"] in outcomes]
    for (backend, outcome), rows in grouped(gone, itemgetter("attention", "outcome")).items():
        runs = {row["run_id"] for row in rows}
        whole = {run for run in runs if (backend, run) not in timed}
        text = form.format(runs=counted(len(whole), "run"), outcome=outcome) if whole else ""
        if part := len(runs - whole):
            more = f"{part:,d} more" if whole else counted(part, "run")
            text += f"{', and ' if whole else ''}ended as `{outcome}` in some of its calls in {more}"
        number = Number(f"runs in which {backend} ended as {outcome}", "runs", len(runs))
        yield Sentence(f"{group_name(backend)} {text}.", (number,))


def unexpected(facts: Facts, backends: Backends) -> list[Sentence]:
    """Other ends than the expected ones, wrong backends, and errors in imported logs."""
    other = [run for run in facts.runs if run["outcome"] and run["outcome"] != run["expected_outcome"]]
    kinds = grouped(other, itemgetter("outcome", "expected_outcome", "reason"))
    ends = []
    for (_, planned, reason), group in kinds.items():
        how = f"where the study expected `{planned}`{_reason(reason)}"
        if group[0]["imported"]:
            how = (reason or "as its log says").rstrip(".")
        ends.append(_ending(group, how))

    wrong = []
    for (backend, dtype, device), rows in grouped(
        backends.wrong, itemgetter("attention", "dtype", "device_name")
    ).items():
        where = f" on {device}" if device else ""
        which = f" in {dtype}" if dtype else ""
        checks, failed = (sum(row[count] for row in rows) for count in ("checks", "failed"))
        those = "certificate" if len(rows) == 1 else f"{len(rows):,d} certificates"
        text = f"{group_name(backend)} computes attention{which} wrongly{where}"
        wrong.append(Sentence(f"{text}: {failed:,d} of {checks:,d} checks of its {those} failed."))
    return [
        *ends,
        *_without_a_run(facts),
        *wrong,
        *(
            Sentence(
                f"Flagged by the check `{check}` of imported logs: {error.partition('. ')[0].rstrip('.')}."
            )
            for error, check in facts.in_logs["error"].items()
        ),
    ]


def without_times(facts: Facts) -> Iterator[Sentence]:
    """Completed runs of attention alone that left no record of what they timed, and backends that failed."""
    timed = {row["run_id"] for row in facts.kernels}
    if lost := [run for run in facts.runs if run["outcome"] == "completed" and run["run_id"] not in timed]:
        have, their = ("has", "its") if len(lost) == 1 else ("have", "their")
        text = f"{counted(len(lost), 'completed run')} {have} no times: "
        text += f"{their} `kernels.json` is missing or holds none."
        yield Sentence(text, (Number("completed runs without times", "runs", len(lost)),))
    yield from _untimed(facts, ("wrong", "failed"), "was not timed in {runs}: it ended as `{outcome}`")


def _without_a_run(facts: Facts) -> Iterator[Sentence]:
    """What a launch asked for by `--only`, and the records have no run of; and empty places of a launch."""
    if facts.removed:  # then a run may be gone because the study no longer has it
        return
    launches = {tuple(run["command"] or ()) for run in facts.runs}
    asked = [text.partition("=") for command in launches for text in options(command, "--only")]
    for axis in dict.fromkeys(axis for axis, _, _ in asked):
        there = {str(run["factors"].get(axis)) for run in facts.runs}
        values = {value.strip() for of, _, values in asked if of == axis for value in values.split(",")}
        if missing := sorted(values - there) if there & values else []:
            names = listed([group_name(value) for value in missing])
            yield Sentence(f"A launch asked for {names} (`{axis}`), but there is no record of such a run.")
    yield from _empty_places(facts.runs)


def _empty_places(runs: Sequence[Run]) -> Iterator[Sentence]:
    """How many runs the largest launch planned at least that the records do not have.

    A launch gives its runs consecutive places in its root, and makes their records within moments. Any run
    of another launch may be one that this launch planned, too, and takes one off the number.
    """
    launches: list[list[Run]] = []
    placed = [run for run in runs if run["position_in_root"] is not None]
    for run in sorted(placed, key=itemgetter("created_at")):
        if launches and run["created_at"] - launches[-1][-1]["created_at"] < _APART:
            launches[-1].append(run)
        else:
            launches.append([run])
    largest = max(launches, key=len, default=[])
    taken = [run["position_in_root"] or 0 for run in largest]
    empty = sorted({*range(min(taken, default=0), max(taken, default=0))} - {*taken})
    others = len(placed) - len(largest)
    if len({*taken}) < len(taken) or len(empty) <= others:  # launches of two roots in one moment
        return
    total, lost = len(taken) + len(empty), len(empty) - others
    least, have = "at least " if others else "", "has" if lost == 1 else "have"
    text = f"A launch planned {total:,d} runs or more, and {least}{lost:,d} of them {have} no record: "
    text += (
        f"{counted(len(empty), 'place')} in its order of starting {'is' if len(empty) == 1 else 'are'} empty"
    )
    text += f" ({listed([*map(str, empty)])})" if len(empty) <= _PLACES else ""
    if others:
        text += f", for which {counted(others, 'run')} of other launches may stand"
    yield Sentence(f"{text}.", (Number("planned runs without a record", "runs", lost),))


def _ending(runs: Sequence[Run], rest: str) -> Sentence:
    """`math` ended as `oom_gpu` (out of GPU memory), 3 runs, ..."""
    outcome = runs[0]["outcome"]
    assert outcome, "these have ended"
    meaning = "" if outcome == Outcome.COMPLETED else f" ({Outcome(outcome).meaning})"
    groups = listed(list(dict.fromkeys(group_name(run["label"]) for run in runs)))
    text = f"{groups} ended as `{outcome}`{meaning} in {counted(len(runs), 'run')}, {rest}."
    number = Number(f"runs of {groups} that ended as {outcome}".replace("`", ""), "runs", len(runs))
    return Sentence(text, (number,))
