"""The comparability guard: what differs between runs besides what is being compared. Pure.

A difference can break a comparison: the effect of what is compared cannot be told from the effect of the
difference, so no verdict is given. Other differences are only worth saying.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence

from analysis.verdicts import values as of
from analysis.verdicts.checks import CHECKS, all_in_warm_up
from analysis.verdicts.difference import Difference, Row, Side
from analysis.verdicts.values import Topic, listed, values


def differences(a: Side, b: Side) -> list[Difference]:
    """What differs between two sets of runs, apart from their configurations; none if one set is empty."""
    if not (a.runs and b.runs):
        return []
    return [difference for check in CHECKS for difference in check(a, b)]


def among(runs: Sequence[Row]) -> list[Difference]:
    """What differs among the completed runs of one study, for its overview.

    It breaks nothing by itself: that depends on which runs are compared, and `differences` says it.
    """
    done = [run for run in runs if run["outcome"] == "completed"]
    topics = (of.DEVICE, of.COMMIT, of.DRIVER, of.CLOCKS)
    found = [difference for topic in topics for difference in _values(topic, done)]
    return [*found, *_texts(done), *_packages(done), *_trust(done), *_warm_up(done), *_timing(done)]


def _values(topic: Topic, runs: Sequence[Row]) -> Iterator[Difference]:
    found = values(runs, topic.of)
    if len(found) > 1:
        said = f"Completed runs {topic.verb} different {topic.noun}s: {listed(found)}."
        yield Difference(topic.name, said)


def _texts(runs: Sequence[Row]) -> Iterator[Difference]:
    texts: dict[str, set[str]] = {}
    for run in runs:
        if run["data_fingerprint"]:
            texts.setdefault(json.dumps(run["config"]["data"]), set()).add(run["data_fingerprint"])
    if paths := {json.loads(data)["path"] for data, found in texts.items() if len(found) > 1}:
        yield Difference("data", f"Completed runs read different texts of the same name: {listed(paths)}.")


def _packages(runs: Sequence[Row]) -> Iterator[Difference]:
    mixed = [f"{name} {' / '.join(found)}" for name, found in of.packages(runs).items() if len(found) > 1]
    if mixed:
        yield Difference("software", f"Completed runs ran with different software: {', '.join(mixed)}.")


def _trust(runs: Sequence[Row]) -> Iterator[Difference]:
    own = [run for run in runs if not run["imported"]]
    if len(own) < len(runs):
        said = (
            f"{len(runs) - len(own)} of {len(runs)} completed runs were imported: they have no certificate."
        )
        yield Difference("imported", said)
    if unsure := {run["attention"] for run in own if run["verdict"] != "right" and run["attention"]}:
        said = f"Completed runs of these backends have no valid certificate: {listed(unsure)}."
        yield Difference("certificate", said)
    if any(run["git_dirty"] for run in runs):
        said = "Some completed runs were planned from a working tree with uncommitted changes."
        yield Difference("diff", said)


def in_logs(runs: Iterable[Row]) -> dict[str, list[str]]:
    """What was found in imported logs, by level: sentences that name the logs."""
    found: dict[str, dict[str, None]] = {"error": {}, "note": {}}
    for run in runs:
        for finding in (run["imported"] or {}).get("findings", ()):
            found[finding["level"]][finding["sentence"]] = None
    return {level: list(sentences) for level, sentences in found.items()}


def _warm_up(runs: Sequence[Row]) -> Iterator[Difference]:
    labels = {run["label"] for run in runs}
    short = [label for label in sorted(labels) if all(map(of.in_warm_up, _of(label, runs)))]
    if short:
        yield all_in_warm_up(short)


def _timing(runs: Sequence[Row]) -> Iterator[Difference]:
    """What makes the times of single runs worth less, whatever they are compared with."""
    mixed = [run for run in runs if run["clocks_changed"]]
    if found := of.regimes(mixed):
        said = f"The GPU's clock, or what throttled it, changed while steps of {len(mixed)} of {len(runs)}"
        yield Difference("regime", f"{said} completed runs were counted ({found}).")
    share = of.starved(runs)
    if share is not None:
        labels = [run["label"] for run in runs if of.starved([run]) is not None]
        said = f"The device waited for data for up to {100 * share:.0f} % of the time in {len(labels)} of "
        said += f"{len(runs)} completed runs ({listed(set(labels))})"
        yield Difference("starved", f"{said}: their speed is partly that of the data.")


def _of(label: str, runs: Sequence[Row]) -> list[Row]:
    return [run for run in runs if run["label"] == label]
