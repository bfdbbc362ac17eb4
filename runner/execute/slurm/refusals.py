"""What Slurm's refusals mean: which setting of the profile is meant, and what it can be on this cluster.

The sentences are those of Slurm 22.05 to 25.11. All limits of accounts and QoS share one sentence; the line
before it names the limit, such as QOSMaxWallDurationPerJobLimit. A job that waits has such a name as reason.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from datetime import timedelta
from typing import NamedTuple

from model.record.units import counted
from runner.execute.slurm import site
from runner.inputs.document import KeyPath, Mark
from runner.inputs.profile import Cluster
from runner.state.slurm import NoAnswer

# A limit on jobs in the queue, or a controller whose own queue is full: the only refusals that waiting cures.
_FULL = re.compile(
    r"(Max|Grp)SubmitJob|job queue full|temporarily unable to accept|failed: Resource temporarily|MaxJobCount"
)
# The controller did not answer, or turned everything of this user away for a moment: the jobs may exist.
_UNANSWERED = re.compile(
    r"timed out|Zero Bytes|[Cc]onnection|[Cc]ommunication|not connected|Unable to contact|standby|Rate limit"
)
# Reasons that hold while the job and the cluster stay as they are. Limits per user depend on what else runs.
_FOR_EVER = re.compile(
    r"Partition(Config|NodeLimit|TimeLimit)|BadConstraints|DependencyNeverSatisfied|DeadLine"
    r"|ReservationDeleted|Invalid(Account|QOS)|(Account|QOS)NotAllowed|(QOS|Association)TimeLimit"
    r"|(QOS|Assoc)Max\w+Per(Job|Node)(Limit)?|QOSMin\w+|JobH[eo]ld\w+|.*\bheld\b.*"
)
_HELD = re.compile(r"JobH[eo]ld|\bheld\b")
# The sentence of all limits, which speaks of time whatever the limit is.
_POLICY = "Job violates accounting/QOS policy (job submit limit, user's size and/or time limits)"
_LIMIT = "a limit of account or QoS"
_NODE = "Requested node configuration is not available"


def is_full(words: str) -> bool:
    """Whether sbatch refused because of the number of jobs in the queue."""
    return bool(_FULL.search(words))


def is_unanswered(words: str) -> bool:
    """Whether sbatch failed without the controller's answer."""
    last = words.rpartition("Batch job submission failed: ")[2]  # a site's own words come before it
    return bool(_UNANSWERED.search(last))


def is_certain(words: str) -> bool:
    """Whether sbatch refuses what `sbatch --test-only` refused in these words.

    While all nodes are down, a test has the words of a node that does not exist, and sbatch accepts the job.
    """
    return not (is_full(words) or is_unanswered(words) or words == f"sbatch: allocation failure: {_NODE}")


def is_for_ever(reason: str) -> bool:
    """Whether a job that waits for this reason does not start, however long it waits."""
    return bool(_FOR_EVER.fullmatch(reason))


def released_by(reason: str, job_id: str) -> str | None:
    """The command that lets a held job start; None if it is not held."""
    return f"scontrol release {job_id}" if _HELD.search(reason) else None


def explained(words: str, cluster: Cluster) -> str:
    """Slurm's words, after the position of the setting that they are about, and before what it can be.

    Args:
        words: a refusal, or the reason why a job waits.
    """
    if option := re.search(r"--([a-z-]+)", words):  # the profile may have it under `options`
        for spelled in (option[1], option[1].replace("-", "_")):
            if place := cluster.document.marks.get(("slurm", "options", spelled)):
                return f"{place}: {words}"
    named = words.replace(_POLICY, _LIMIT)
    cause = next((cause for cause in _CAUSES if re.search(cause.words, named)), None)
    if cause is None:  # a site's own words
        return words
    choices = ""
    with suppress(NoAnswer):  # then Slurm's words must do
        of_nodes = cause.choices is not _time and re.search(r"\b(QOS|Assoc)(Max|Min)", named)
        choices = "change it, or `slurm.qos`, whose limit this is" if of_nodes else cause.choices(cluster)
    return f"{_place(cause.settings, cluster)}: {words}{choices and f': {choices}'}"


def too_long(cluster: Cluster, seconds: int | None) -> str | None:
    """Why jobs with this time limit would never start; None if nothing is known against it.

    Raises:
        NoAnswer: Slurm cannot be reached.
    """
    asked = -(-(seconds or 0) // 60) * 60  # sbatch is given whole minutes
    for where, written, most in site.time_limits(cluster.profile) if asked else ():
        if asked > most:
            return f"{_place([_TIME], cluster)}: {timedelta(seconds=asked)} is above the {written} {where}"
    return None


class _Cause(NamedTuple):
    """A kind of refusal: sentences of Slurm, and the settings that they are about.

    Attributes:
        words: a regular expression.
        settings: the keys that can be meant; the position is that of the first that the profile has.
        choices: says what they can be; nothing if Slurm does not tell.
    """

    words: str
    settings: Sequence[KeyPath]
    choices: Callable[[Cluster], str] = lambda _: ""


def _one_of(key: str, values: Iterable[str]) -> str:
    given = ", ".join(dict.fromkeys(filter(None, values)))
    return f"`{key}` can be {given}" if given else ""


def _qos(cluster: Cluster) -> str:
    account = cluster.profile.slurm and cluster.profile.slurm.account
    allowed = [association for association in site.associations() if account in (None, association.account)]
    return _one_of("slurm.qos", (name for association in allowed for name in association.qos))


def _time(cluster: Cluster) -> str:
    if not cluster.profile.time_limit:
        return "set `time_limit`: this cluster wants one"
    most = [f"{limit.written} {limit.where}" for limit in site.time_limits(cluster.profile)]
    return f"`time_limit` can be at most {' and '.join(most)}" if most else "lower `time_limit`"


def _partition_has(cluster: Cluster) -> str:
    number = sum(int(nodes.number) for nodes in site.nodes(cluster.profile))
    times = [f"time limits up to {limit.written}" for limit in site.time_limits(cluster.profile)[:1]]
    return f"the partition has {' and '.join([counted(number, 'node'), *times])}" if number else ""


def _nodes_have(advice: str, value: Callable[[site.Nodes], str]) -> Callable[[Cluster], str]:
    """Says what the nodes of the profile's partition have."""

    def choices(cluster: Cluster) -> str:
        there = dict.fromkeys(value(nodes) for nodes in site.nodes(cluster.profile))
        return f"{advice}: a node has {' or '.join(there)}" if there else ""

    return choices


_TIME: KeyPath = ("time_limit",)
_GRES: Sequence[KeyPath] = [("slurm", "gres"), ("slurm", "options", "gres"), ("gpus",)]
_CPUS: Sequence[KeyPath] = [("cpus",), ("slurm", "options", "cpus-per-task")]
_MEMORY: Sequence[KeyPath] = [("memory",), ("slurm", "options", "mem"), ("slurm", "ask_memory")]
_CONSTRAINT: Sequence[KeyPath] = [("slurm", "constraint"), ("slurm", "options", "constraint")]
_COUNTS: Sequence[KeyPath] = [("gpus_per_node",), ("processes_per_node",), ("slurm", "partition")]

# The first that fits counts: what names a resource comes before what all of them have in common.
_CAUSES = (
    _Cause(r"[Tt]ime.?limit|MaxWall|QOSMinWall|DeadLine|Invalid --time", [_TIME], _time),
    _Cause(
        r"Memory (specification|required)|Invalid --mem|(Max|Min)Mem",
        _MEMORY,
        _nodes_have("lower `memory`, or set `ask_memory: false`", lambda nodes: f"{nodes.memory} MB"),
    ),
    _Cause(
        r"CPU count|[Mm]ore processors|(Max|Min)C[Pp][Uu]",
        _CPUS,
        _nodes_have("change `cpus`", lambda nodes: f"{nodes.cpus} CPUs"),
    ),
    _Cause(
        r"\b[Gg]?(?i:gres)\b|[Gg]eneric resource|Trackable RESource|(Max|Min)GRES",
        _GRES,
        _nodes_have("change `gres`", lambda nodes: nodes.gres or "no GPU"),
    ),
    _Cause(
        r"[Ii]nvalid account|InvalidAccount|AccountNotAllowed",
        [("slurm", "account")],
        lambda _: (
            _one_of("slurm.account", (association.account for association in site.associations()))
            or "Slurm knows no account of yours on this cluster: ask its support for one"
        ),
    ),
    _Cause(r"[Ii]nvalid qos|InvalidQOS|QOSNotAllowed", [("slurm", "qos")], _qos),
    _Cause(r"[Nn]ode count|Partition(NodeLimit|Config)|(Max|Min)Node", _COUNTS, _partition_has),
    _Cause(
        r"[Pp]artition",
        [("slurm", "partition")],
        lambda _: _one_of("slurm.partition", (nodes.partition for nodes in site.nodes())),
    ),
    _Cause(
        r"[Ff]eature|BadConstraints",
        _CONSTRAINT,
        _nodes_have("change `constraint`", lambda nodes: nodes.features or "no features"),
    ),
    _Cause(
        r"[Rr]eservation",
        [("slurm", "reservation")],
        lambda _: _one_of("slurm.reservation", site.reservations()) or "the cluster has no reservation",
    ),
    _Cause(
        r"job array",
        [("max_queued",)],
        lambda _: (
            f"arrays have at most {counted(site.max_array_size(), 'element')}: set `max_queued` to fewer"
        ),
    ),
    _Cause(
        _NODE,
        [*_GRES, *_CONSTRAINT, *_CPUS, *_MEMORY],
        _nodes_have(
            "no node has all that is asked for, or those are down", lambda nodes: nodes.what_each_has
        ),
    ),
    _Cause(r"[Dd]ependency", [("slurm", "options", "dependency")]),
    _Cause(rf"\b(QOS|Assoc)[A-Z]\w+|{_LIMIT}", [("slurm", "qos"), ("slurm", "account")]),
)


def _place(settings: Sequence[KeyPath], cluster: Cluster) -> Mark:
    """Position of the first of these settings that the profile has; in `debug`, if that is in force."""
    marks, profile = cluster.document.marks, cluster.profile
    for *section, key in settings:
        in_force = getattr(profile.slurm if section else profile, str(key), None)
        if ("debug", key) in marks and in_force == getattr(profile.debug, str(key)):
            return marks["debug", key]
        if (*section, key) in marks:
            return marks[*section, key]
    return cluster.document.mark(settings[0])
