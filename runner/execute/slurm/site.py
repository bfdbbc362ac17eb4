"""What a cluster has and what it allows this user: nodes, time limits, accounts, QoS, reservations."""

from __future__ import annotations

import os
import pwd
import re
import shutil
from typing import NamedTuple

from runner.inputs.profile import Profile
from runner.state import slurm
from runner.state.slurm import NoAnswer, SchedulerError, ask, error_text, run

_UNLIMITED = 2**62


def configuration() -> dict[str, str]:
    """The settings of the cluster. Raises NoAnswer."""
    lines = (line.partition("=") for line in ask("scontrol", "show", "config").splitlines())
    return {name.strip(): value.strip() for name, _, value in lines}


def has_accounting() -> bool:
    """Whether the cluster has accounting, as far as this machine can tell."""
    if not shutil.which("sacct"):
        return False
    try:
        return configuration().get("AccountingStorageType") not in ("", "(null)", "accounting_storage/none")
    except NoAnswer:
        return True


def max_array_size() -> int:
    """The most elements an array can have; MaxArraySize is 0 where arrays are off. Raises NoAnswer."""
    settings = configuration()
    tasks = re.search(r"\bmax_array_tasks=(\d+)", settings.get("SchedulerParameters", ""))
    size = int(settings.get("MaxArraySize") or 1001)
    return max(1, min(size, int(tasks[1]) if tasks else size))


def expected_start(script: str) -> str | None:
    """Slurm's estimate of when a batch script's first job would start if submitted now; None if unknown.

    Raises:
        SchedulerError: the script would be refused, or Slurm cannot be reached; the message quotes it.
    """
    done = run("sbatch", "--test-only", given=script)
    if done.returncode:
        raise SchedulerError(f"sbatch: {error_text(done)}")
    match = re.search(r"to start at (\S+)", done.stderr)
    return match[1] if match else None


class Nodes(NamedTuple):
    """Nodes of a partition that are alike; each field as Slurm writes it."""

    partition: str
    limit: str
    number: str
    cpus: str
    memory: str
    gres: str
    features: str
    default: bool

    @property
    def what_each_has(self) -> str:
        """`2 CPUs, 4000 MB, gpu:4`."""
        return ", ".join(filter(None, [f"{self.cpus} CPUs", f"{self.memory} MB", self.gres, self.features]))


def nodes(profile: Profile | None = None) -> list[Nodes]:
    """The nodes of all partitions that this user sees, or of those that a profile uses. Raises NoAnswer."""
    answer = ask("sinfo", "-h", "-e", "-o", slurm.BAR.join(["%P", "%l", "%D", "%c", "%m", "%G", "%f"]))
    shown = []
    for partition, *rest in slurm.rows(answer, 7):
        given = ["" if word == "(null)" else word for word in rest]
        shown.append(Nodes._make([partition.rstrip("*"), *given, partition.endswith("*")]))
    if profile is None or profile.slurm is None:
        return shown
    asked = (profile.slurm.partition or "").split(",")
    return [
        nodes for nodes in shown if (nodes.partition in asked if profile.slurm.partition else nodes.default)
    ]


class Association(NamedTuple):
    """An account that this user can charge jobs to, and the QoS that they can have there."""

    account: str
    qos: list[str]


def associations() -> list[Association]:
    """The accounts of this user on this cluster, from accounting. Raises NoAnswer."""
    user, cluster = pwd.getpwuid(os.getuid()).pw_name, configuration().get("ClusterName", "")
    where = [f"user={user}", *([f"cluster={cluster}"] if cluster else [])]
    answer = ask("sacctmgr", "-n", "-P", "show", "assoc", *where, "format=account,qos")
    lines = (line.partition("|") for line in answer.splitlines())
    return [Association(account, qos.split(",")) for account, _, qos in lines]


def reservations() -> list[str]:
    """The names of the cluster's reservations. Raises NoAnswer."""
    return re.findall(r"^ReservationName=(\S+)", ask("scontrol", "-o", "show", "reservation"), re.M)


class TimeLimit(NamedTuple):
    """The longest time limit that jobs can have; `written` as Slurm writes it."""

    where: str
    written: str
    seconds: int


def time_limits(profile: Profile) -> list[TimeLimit]:
    """The limits on the time of a profile's jobs: of its partitions, the longest, and of its QoS.

    Raises:
        NoAnswer: the controller does not answer.
    """
    assert profile.slurm
    qos, limits = _qos_limits(), []
    asked = [profile.slurm.qos] if profile.slurm.qos else list(qos)
    partitions = [
        TimeLimit(f"in partition {group.partition}", group.limit, _seconds(group.limit))
        for group in nodes(profile)
    ]
    if partitions and not any("PartitionTimeLimit" in qos.get(name, ("", ""))[1] for name in asked):
        limits.append(max(partitions, key=lambda limit: limit.seconds))
    if (name := profile.slurm.qos) and name in qos and qos[name][0]:
        limits.append(TimeLimit(f"with QoS {name}", qos[name][0], _seconds(qos[name][0])))
    return [limit for limit in limits if limit.seconds < _UNLIMITED]


def _qos_limits() -> dict[str, tuple[str, str]]:
    """The longest time and the flags of each QoS, by name; empty where limits are off, or nobody can tell."""
    try:
        if not re.search("limits|safe|all", configuration().get("AccountingStorageEnforce", "")):
            return {}
        answer = ask("sacctmgr", "-n", "-P", "show", "qos", "format=name,maxwall,flags")
    except NoAnswer:
        return {}
    rows = (line.split("|") for line in answer.splitlines())
    return {name: (longest, flags) for name, longest, flags in rows}


def _seconds(written: str) -> int:
    """A time limit as Slurm writes it: `infinite`, `M:SS`, `H:MM:SS` or `D-HH:MM:SS`."""
    parts = re.fullmatch(r"(?:(\d+)-)?(?:(\d+):)?(\d+):(\d+)", written)
    days, hours, minutes, seconds = (int(part or 0) for part in parts.groups()) if parts else (0, 0, 0, 0)
    return ((days * 24 + hours) * 60 + minutes) * 60 + seconds or _UNLIMITED
