"""The comparability guard: what differs between runs besides what is being compared. Pure.

A difference can break a comparison: the effect of what is compared cannot be told from the effect of the
difference, so no verdict is given. Other differences are only worth saying.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from analysis.stats import by_label
from analysis.stats.rows import paired_by
from analysis.stats.verdict import Incomparable, Verdict
from analysis.verdicts import values
from analysis.verdicts.values import Row, Topic, recorded
from model.record.units import counted

Measure = Literal["speed", "loss", "mfu"]  # what is compared: seconds per step, losses, MFU and TFLOP/s
# Every topic of the guard. The name of a setting is one, too.
TOPICS = (
    "commit", "diff", "device", "processes", "host", "clocks", "throttling", "regime", "starved", "users",
    "driver", "software", "data", "flop", "peak", "padding", "steps", "warmup", "order", "imported",
    "certificate",
)  # fmt: skip
NOTHING: frozenset[Measure] = frozenset()
SPEED: frozenset[Measure] = frozenset({"speed"})
LOSS: frozenset[Measure] = frozenset({"loss"})
MFU: frozenset[Measure] = frozenset({"mfu"})
SPEED_AND_LOSS = SPEED | LOSS


@dataclass(frozen=True)
class RunSet:
    """One of two sets of runs.

    Attributes:
        name: what sentences call it.
        runs: rows of the view `runs`, with JSON columns parsed.
    """

    name: str
    runs: Sequence[Row]


@dataclass(frozen=True)
class Difference:
    """A difference between two sets of runs.

    Attributes:
        topic: one of `TOPICS`, or the name of a setting; `runner compare --across` takes it.
        sentence: what differs.
        breaks: the comparisons on which no verdict may be given; empty if it is only worth saying.
    """

    topic: str
    sentence: str
    breaks: frozenset[Measure] = NOTHING


def breaking(differences: Iterable[Difference], measure: Measure) -> tuple[str, ...]:
    """The differences that break one kind of comparison, each sentence once; none if nothing does."""
    return tuple(
        dict.fromkeys(difference.sentence for difference in differences if measure in difference.breaks)
    )


def withheld(verdict: Verdict, differences: Iterable[Difference], measure: Measure) -> Verdict:
    """The verdict; if differences break the comparison, what was measured alone, and why."""
    if broken := breaking(differences, measure):
        return replace(verdict, kind="withheld", reason=Incomparable(broken), low=None, high=None)
    return verdict


def differences(a: RunSet, b: RunSet) -> list[Difference]:
    """What differs between two sets of runs, apart from their configurations; none if one set is empty."""
    if not (a.runs and b.runs):
        return []
    return [difference for check in CHECKS for difference in check(a, b)]


def among(runs: Sequence[Row]) -> list[Difference]:
    """What differs among the completed runs of one study, for its overview.

    It breaks nothing by itself: that depends on which runs are compared, and `differences` says it.
    """
    done = [run for run in runs if run["outcome"] == "completed"]
    differences = []
    for topic in (values.DEVICE, values.COMMIT, values.DRIVER, values.CLOCKS):
        if len(differing := recorded(done, topic.text_of)) > 1:
            text = f"Completed runs {topic.verb} different {topic.noun}s: {_sorted(differing)}."
            differences.append(Difference(topic.name, text))

    texts: dict[str, set[str]] = {}
    for run in done:
        if run["data_fingerprint"]:
            texts.setdefault(json.dumps(run["config"]["data"]), set()).add(run["data_fingerprint"])
    if paths := {json.loads(data)["path"] for data, fingerprints in texts.items() if len(fingerprints) > 1}:
        text = f"Completed runs read different texts of the same name: {_sorted(paths)}."
        differences.append(Difference("data", text))

    differences += _packages_among(done)
    own = [run for run in done if not run["imported"]]
    if others := len(done) - len(own):
        text = f"{others} of {len(done)} runs were imported: they have no certificate."
        differences.append(Difference("imported", text))
    if unsure := {run["attention"] for run in own if run["verdict"] != "right" and run["attention"]}:
        text = f"Completed runs of these backends have no valid certificate: {_sorted(unsure)}."
        differences.append(Difference("certificate", text))
    if any(run["git_dirty"] for run in done):
        text = "Some completed runs were planned from a working tree with uncommitted changes."
        differences.append(Difference("diff", text))

    in_warm_up = {label: all(map(values.in_warm_up, group)) for label, group in by_label(done).items()}
    if short := sorted(label for label, whole in in_warm_up.items() if whole):
        differences.append(all_in_warm_up(short))

    # What makes the times of single runs worth less, whatever they are compared with.
    differences += _held_back(done)
    if (share := values.starved(done)) is not None:
        labels = [run["label"] for run in done if values.starved([run]) is not None]
        text = f"The device waited for data for up to {100 * share:.0f} % of the time in {len(labels)} of "
        text += (
            f"{len(done)} completed runs ({_sorted(set(labels))}): their speed is partly that of the data."
        )
        differences.append(Difference("starved", text))
    return differences


def _held_back(done: Sequence[Row]) -> Iterator[Difference]:
    """Of how many runs the GPU's clock was held back, or changed, while steps counted."""
    reasons = [values.held_back_by(run) for run in done]
    unsteady = [run for run in done if run["clocks_changed"]]
    clocks = values.regimes(unsteady)
    if held := sum(map(bool, reasons)):
        by = " and ".join(sorted(set().union(*reasons)))
        text = (
            f"{by} held back the GPU's clock while steps of {held} of {len(done)} completed runs were counted"
        )
        if clocks:
            several = any("; " in (run["throttle_reasons"] or "") for run in unsteady)
            or_what = ", or not all steps were held back alike" if several else ""
            text += f"; in {len(unsteady)}, its lowest is over 15 % below its highest{or_what} ({clocks})"
        yield Difference("regime", f"{text}.")
    elif clocks:
        text = f"The GPU's clock, or what throttled it, changed while steps of {len(unsteady)} of {len(done)}"
        yield Difference("regime", f"{text} completed runs were counted ({clocks}).")


def _packages_among(done: Sequence[Row]) -> Iterator[Difference]:
    """Packages of which runs had several versions, and those that only some of them had."""
    packages = values.packages(done)
    if mixed := [f"{name} {' / '.join(many)}" for name, many in packages.items() if len(many) > 1]:
        text = f"Completed runs ran with different software: {', '.join(mixed)}."
        yield Difference("software", text)
    software = [run["software"] for run in done if run["software"]]
    shares = {name: sum(name in versions for versions in software) for name in packages}
    if partly := [f"{name} ({n} of {len(software)})" for name, n in shares.items() if n < len(software)]:
        text = f"Only some of the completed runs had these packages: {', '.join(partly)}."
        yield Difference("software", text)


def in_logs(runs: Iterable[Row]) -> dict[str, dict[str, str]]:
    """What was found in imported logs, by level: sentences that name the logs, each with the check's name."""
    by_level: dict[str, dict[str, str]] = {"error": {}, "note": {}}
    for run in runs:
        for finding in (run["imported"] or {}).get("findings", ()):
            by_level[finding["level"]][finding["sentence"]] = finding["check"]
    return by_level


def _sorted(texts: Iterable[str]) -> str:
    return ", ".join(sorted(texts))


Check = Callable[[RunSet, RunSet], Iterator[Difference]]
# Packages that compute nothing in a training step. Backends bring packages that are not known here, so every
# other package counts.
_HARMLESS = frozenset({"python", "numpy", "pyarrow", "tokenizers", "assay-studies"})
_THROTTLING_TOLERANCE = 0.05  # of the time
_PADDING_TOLERANCE = 0.05  # percentage points; the same samples have the same share but for rounding


def _commit(a: RunSet, b: RunSet) -> Iterator[Difference]:
    """A difference between commits breaks nothing if the runs executed the same code."""
    of_a, of_b = (recorded(_own(side), lambda run: (run["git_sha"] or "")[:10]) for side in (a, b))
    if of_a == of_b or not (of_a and of_b):
        return
    at_a, at_b = (
        ", ".join(f"at commit {sha}" if sha else "outside a repository" for sha in sorted(commits))
        for commits in (of_a, of_b)
    )
    yield _unless_same_code(a, b, "commit", f"{a.name} ran {at_a}, {b.name} {at_b}")


def _own(side: RunSet) -> list[Row]:
    """The side's runs without imported ones, whose code nobody knows."""
    return [run for run in side.runs if not run["imported"]]


def _diff(a: RunSet, b: RunSet) -> Iterator[Difference]:
    dirty = [side.name for side in (a, b) if any(run["git_dirty"] for run in side.runs)]
    if dirty:
        text = f"{' and '.join(dirty)} ran with uncommitted changes"
        yield _unless_same_code(a, b, "diff", text)


def _unless_same_code(a: RunSet, b: RunSet, topic: str, text: str) -> Difference:
    of_a, of_b = ({run["code"] for run in side.runs} for side in (a, b))
    if of_a == of_b and len(of_a) == 1 and None not in of_a:
        return Difference(topic, f"{text}; the code that their jobs ran is the same.")
    return Difference(topic, f"{text}.", SPEED_AND_LOSS)


def _compared(topic: Topic, breaks: frozenset[Measure], unknown: frozenset[Measure]) -> Check:
    """The check of a topic whose values are compared as they are.

    Args:
        unknown: what it breaks that one side alone has no value.
    """

    def check(a: RunSet, b: RunSet) -> Iterator[Difference]:
        of_a, of_b = (recorded(side.runs, topic.text_of) for side in (a, b))
        if of_a and of_b and of_a != of_b:
            text = f"{a.name} {topic.verb} {_sorted(of_a)}, {b.name} {topic.verb} {_sorted(of_b)}."
            yield Difference(topic.name, text, breaks)
        elif of_a != of_b:
            was = "were" if " and " in topic.noun else "was"
            text = f"The {topic.noun} of {(b if of_a else a).name} {was} not recorded."
            yield Difference(topic.name, text, unknown)
        elif len(of_a) > 1:
            text = f"{a.name} and {b.name} each {topic.verb} different {topic.noun}s: {_sorted(of_a)}."
            yield Difference(topic.name, text)
        elif not of_a and any(map(topic.expected, a.runs)):
            yield Difference(topic.name, f"The {topic.noun}s of {a.name} and {b.name} were not recorded.")

    return check


def _host(a: RunSet, b: RunSet) -> Iterator[Difference]:
    """Breaks if a side ran on one host, where the other never ran: no spread shows how hosts differ."""
    of_a, of_b = (recorded(side.runs, values.HOST.text_of) for side in (a, b))
    if of_a == of_b or not (of_a and of_b):
        return
    text = f"{a.name} ran on {_sorted(of_a)}, {b.name} on {_sorted(of_b)}"
    if min(len(of_a), len(of_b)) == 1 and not of_a & of_b:
        yield Difference("host", f"{text}: machines of the same kind differ too.", SPEED)
    else:
        yield Difference("host", f"{text}.")


def _pairs(a: RunSet, b: RunSet) -> Iterator[Difference]:
    """Breaks if both sides ran on the same devices, but a pair on two: its ratio is that of the devices."""
    if recorded(a.runs, values.DEVICE.text_of) != recorded(b.runs, values.DEVICE.text_of):
        return
    of_a, of_b = paired_by(a.runs), paired_by(b.runs)
    pairs = [recorded((of_a[key], of_b[key]), values.DEVICE.text_of) for key in of_a if key in of_b]
    if apart := sum(len(devices) > 1 for devices in pairs):
        text = f"{apart} of {counted(len(pairs), 'pair')} of runs of {a.name} and {b.name}"
        was = "was" if apart == 1 else "were"
        yield Difference("device", f"{text} {was} on different devices: their ratio is that of these.", SPEED)


def _processes(a: RunSet, b: RunSet) -> Iterator[Difference]:
    """Breaks the speed: more GPUs are another machine. How much faster it is, is what scaling charts say."""
    of_a, of_b = (recorded(side.runs, values.processes) for side in (a, b))
    if of_a and of_b and of_a != of_b:
        text = f"{a.name} trained with {_sorted(of_a)}, {b.name} with {_sorted(of_b)}"
        yield Difference("processes", f"{text}: their rates come from machines of different sizes.", SPEED)


def _throttling(a: RunSet, b: RunSet) -> Iterator[Difference]:
    """Breaks if heat slowed only one side. A busy GPU is always more or less under its power limit."""
    for column, what, breaks in (
        ("power_capped_seconds", "The power limit", NOTHING),
        ("slowed_seconds", "Heat or the power supply", SPEED),
    ):
        of_a, of_b = (values.held_back(side.runs, column) for side in (a, b))
        if of_a is None or of_b is None or abs(of_a - of_b) <= _THROTTLING_TOLERANCE:
            continue
        text = f"{what} throttled the clocks for {100 * of_a:.0f} % of the wall time of {a.name}"
        yield Difference(
            "throttling", f"{text} and {100 * of_b:.0f} % of that of {b.name}; starting counts.", breaks
        )


def _regime(a: RunSet, b: RunSet) -> Iterator[Difference]:
    """Breaks nothing: a GPU at work under its power limit changes its clock all the time, more or less."""
    for side in (a, b):
        if clocks := values.regimes(side.runs):
            text = f"The GPU's clock, or what throttled it, changed while steps of {side.name} were counted"
            yield Difference("regime", f"{text} ({clocks}).")


def _starved(a: RunSet, b: RunSet) -> Iterator[Difference]:
    """Breaks if one side alone waited for its data."""
    shares = {side.name: share for side in (a, b) if (share := values.starved(side.runs)) is not None}
    for name, share in shares.items():
        text = f"The device of {name} waited for data for up to {100 * share:.0f} % of the time"
        breaks = SPEED if len(shares) == 1 else NOTHING
        yield Difference("starved", f"{text}: its speed is partly that of the data.", breaks)


def _users(a: RunSet, b: RunSet) -> Iterator[Difference]:
    """Breaks if one side alone shared its GPU."""
    shared = [side.name for side in (a, b) if any(run["device_users"] for run in side.runs)]
    if shared:
        text = f"Other processes used the GPU when runs of {' and '.join(shared)} started."
        yield Difference("users", text, SPEED if len(shared) == 1 else NOTHING)


def _software(a: RunSet, b: RunSet) -> Iterator[Difference]:
    """A package that one side does not have, or did not record, is only said."""
    of_a, of_b = values.packages(a.runs), values.packages(b.runs)
    if not (of_a and of_b):
        if of_a or of_b:
            yield Difference("software", f"The software of {(b if of_a else a).name} was not recorded.")
        return
    apart = [name for name in of_a if of_a[name] != of_b.get(name, of_a[name])]
    apart_in_words = [f"{name} {' / '.join(of_a[name])} and {' / '.join(of_b[name])}" for name in apart]
    apart_in_words += [f"{name} only in {a.name}" for name in of_a if name not in of_b]
    apart_in_words += [f"{name} only in {b.name}" for name in of_b if name not in of_a]
    if apart_in_words:
        sentence = f"{a.name} and {b.name} ran with different software: {', '.join(apart_in_words)}."
        yield Difference("software", sentence, SPEED if set(apart) - _HARMLESS else NOTHING)


def _data(a: RunSet, b: RunSet) -> Iterator[Difference]:
    of_a, of_b = (recorded(side.runs, lambda run: run["data_fingerprint"]) for side in (a, b))
    if not (of_a or of_b):
        yield Difference("data", f"Which texts {a.name} and {b.name} read was not recorded.")
    elif not (of_a and of_b):
        yield Difference("data", f"Which text {(b if of_a else a).name} read was not recorded.", LOSS)
    elif of_a != of_b:
        text = f"{a.name} and {b.name} read different texts, or with different tokenizers."
        yield Difference("data", text, LOSS)


def _flop(a: RunSet, b: RunSet) -> Iterator[Difference]:
    """At equal configuration, another FLOP per token gives another MFU at the same speed."""
    of_a, of_b = values.flop_by_model(a.runs), values.flop_by_model(b.runs)
    for model in of_a:
        if of_a[model] != of_b.get(model, of_a[model]):
            one, other = (
                " / ".join(f"{count / 1e9:.4g}" for count in sorted(counts[model])) for counts in (of_a, of_b)
            )
            text = f"{a.name} counts {one} GFLOP per token, {b.name} {other} for the same model"
            yield Difference("flop", f"{text}: their MFU and TFLOP/s are not comparable.", MFU)
            return


def _padding(a: RunSet, b: RunSet) -> Iterator[Difference]:
    """For one seed, text and number of steps, another share of padding means other samples."""
    of_a, of_b = values.shares(a.runs), values.shares(b.runs)
    apart = [key for key in of_a if abs(of_a[key] - of_b.get(key, of_a[key])) > _PADDING_TOLERANCE]
    if apart:
        one, other = (
            f"{shares[apart[0]]:.1f} % of {side.name}'s tokens" for shares, side in ((of_a, a), (of_b, b))
        )
        text = f"With the same seed and text, {one} count in the loss and {other}"
        yield Difference("padding", f"{text}; the rest is padding. Their samples differ.", LOSS)


def _steps(a: RunSet, b: RunSet) -> Iterator[Difference]:
    def progress(run: Row) -> str | None:
        steps, planned = run["steps"], run["planned_steps"]
        if steps is None:
            return None
        return f"{steps:,d} of {planned:,d}" if planned and planned != steps else f"{steps:,d}"

    of_a, of_b = (recorded(side.runs, progress) for side in (a, b))
    short = [run for run in (*a.runs, *b.runs) if run["planned_steps"] not in (None, run["steps"])]
    if of_a != of_b or short:
        text = f"{a.name} did {_sorted(of_a) or 'unknown'} steps, {b.name} {_sorted(of_b) or 'unknown'}."
        yield Difference("steps", text)


def _warm_up(a: RunSet, b: RunSet) -> Iterator[Difference]:
    names = [side.name for side in (a, b) if all(map(values.in_warm_up, side.runs))]
    if names:
        yield all_in_warm_up(names)


def all_in_warm_up(names: list[str]) -> Difference:
    """Breaks nothing: a wrong result shows in the warm-up, too; only that losses are equal says less."""
    text = f"All steps of {', '.join(names)} lie in the learning-rate warm-up: equal losses say little."
    return Difference("warmup", text)


def _order(a: RunSet, b: RunSet) -> Iterator[Difference]:
    """Breaks if each side has several runs and all of one ran before all of the other."""
    for first, then in ((a, b), (b, a)):
        ended, started = [run["ended_at"] for run in first.runs], [run["started_at"] for run in then.runs]
        if min(len(ended), len(started)) < 2 or None in (*ended, *started):
            continue
        if max(ended) <= min(started):
            text = f"All runs of {first.name} ended before the first of {then.name} started"
            yield Difference("order", f"{text}: machine drift would look like an effect.", SPEED)


def _imported(a: RunSet, b: RunSet) -> Iterator[Difference]:
    """Breaks if one side alone was imported: then its code differs, too."""
    sides = [side for side in (a, b) if len(_own(side)) < len(side.runs)]
    if sides:
        text = f"{' and '.join(side.name for side in sides)} {'were' if len(sides) > 1 else 'was'} imported"
        sentence = f"{text}: measured by other code, and without a certificate."
        yield Difference("imported", sentence, NOTHING if len(sides) > 1 else SPEED_AND_LOSS)


def _certificate(a: RunSet, b: RunSet) -> Iterator[Difference]:
    """A wrong backend computes something else; of one without a certificate nobody knows."""
    verdicts = {(run["attention"], run["verdict"]) for side in (a, b) for run in _own(side)}
    wrong = {attention for attention, verdict in verdicts if verdict == "wrong"}
    unsure = {attention for attention, verdict in verdicts if verdict not in ("right", "wrong")}
    if wrong:
        text = f"Certificates say that {_sorted(wrong)} computes something else."
        yield Difference("certificate", text, SPEED)
    if unsure:
        yield Difference("certificate", f"Runs of {_sorted(unsure)} have no valid certificate.")


CHECKS: tuple[Check, ...] = (
    _commit,
    _diff,
    _compared(values.DEVICE, SPEED, SPEED),
    _pairs,
    _processes,
    _host,
    _compared(values.CLOCKS, SPEED, NOTHING),
    _throttling,
    _regime,
    _starved,
    _users,
    _compared(values.DRIVER, SPEED, NOTHING),
    _software,
    _data,
    _flop,
    _compared(values.PEAK, MFU, MFU),
    _padding,
    _steps,
    _warm_up,
    _order,
    _imported,
    _certificate,
)
