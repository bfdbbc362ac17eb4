"""The scripts of shipped profiles ask for what the centres' documents ask, and for nothing that they forbid."""

import re
import shlex
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from types import EllipsisType

import pytest

from runner.execute.slurm.script import script as script_of
from runner.inputs.profile import profile_files, read_cluster
from runner.state.attempts import JobShape

PROJECT = "your-project"
GPUS = ("gpus", "gpus-per-node", "gpus-per-task", "gpus-per-socket", "gres")
MEMORY = ("mem", "mem-per-cpu", "mem-per-gpu")


@dataclass(frozen=True)
class Centre:
    """What a centre says of its machine or, where `source` says so, what its users' scripts agree on.

    Attributes:
        gpus: on a node.
        cores: on a node, as --cpus-per-task counts them: cores or hardware threads.
        hours: the longest job of the ordinary queue.
        whole: nodes are allocated whole, so that a job that uses only some of the GPUs wastes the others.
        memory: MiB of a node for jobs; None if jobs do not ask for memory.
        account: what an account looks like; None if there is none.
        asks: options of sbatch that every job needs, and their values; `...` is any value, None is no value.
        tests: those that differ in the queue for tests.
        tests_hours: its longest job.
        tests_jobs: how many jobs of a user it takes.
        srun: words that srun needs.
        alone: words that it also needs if its tasks are runs of their own, which must not share a GPU.
        lines: lines of the script before srun.
        env: variables that it sets.
        forbids: options, with or without a value, that neither sbatch nor srun may get.
        sbatch_forbids: those that sbatch may not get.
    """

    source: str
    gpus: int
    cores: int
    hours: float
    whole: bool = False
    memory: int | None = None
    account: str | None = PROJECT
    asks: dict[str, str | EllipsisType | None] = field(default_factory=dict)
    tests: dict[str, str] = field(default_factory=dict)
    tests_hours: float = 0
    tests_jobs: int | None = None
    srun: tuple[str, ...] = ()
    alone: tuple[str, ...] = ()
    lines: tuple[str, ...] = ()
    env: dict[str, str] = field(default_factory=dict)
    forbids: tuple[str, ...] = ()
    sbatch_forbids: tuple[str, ...] = ()


CLARIDEN = {
    "gpus": 4,
    "cores": 288,
    "hours": 12,
    "whole": True,
    "tests": {"partition": "debug"},
    "tests_hours": 1.5 / 4,  # 1.5 node-hours, on up to four nodes
    "tests_jobs": 2,
    "asks": {"partition": "normal", "constraint": "thp_never&nvidia_vboost_enabled"},
    "alone": ("--gpus-per-task=1",),
    "lines": ("ulimit -c 0",),
    "forbids": ("mem=0",),
    "sbatch_forbids": ("environment", "uenv", "view"),  # of a job, not of the host's batch script
}
CENTRES = {
    "alps": Centre(
        "CSCS, docs.cscs.ch: Clariden; Slurm; PyTorch, with the container engine (2026-08-20)",
        **CLARIDEN,
        srun=("--environment=assay",),
    ),
    "alps-uenv": Centre(
        "CSCS, docs.cscs.ch: Clariden; Slurm; PyTorch, with a uenv; NCCL (2026-08-20)",
        **CLARIDEN,
        srun=("--uenv=pytorch/v2.9.1:/user-environment", "--view=default"),
        env={
            "TRITON_HOME": "/dev/shm/",
            "MPICH_GPU_SUPPORT_ENABLED": "0",
            "CUDA_CACHE_DISABLE": "1",
            "NCCL_NET": "AWS Libfabric",
            "NCCL_NET_GDR_LEVEL": "PHB",
            "NCCL_CROSS_NIC": "1",
            "NCCL_PROTO": "^LL128",
            "FI_CXI_DEFAULT_CQ_SIZE": "131072",
            "FI_CXI_DEFAULT_TX_SIZE": "16384",
            "FI_CXI_DISABLE_HOST_REGISTER": "1",
            "FI_CXI_RX_MATCH_MODE": "software",
            "FI_MR_CACHE_MONITOR": "userfaultfd",
        },
    ),
    "leonardo": Centre(
        "CINECA: LEONARDO User Guide; Booster Section (2025-03). Users: a GPU has eight cores",
        gpus=4,
        cores=32,
        memory=503 * 1024,
        hours=24,
        asks={"partition": "boost_usr_prod", "gres": ...},
        tests={"partition": "boost_usr_prod", "qos": "boost_qos_dbg"},
        tests_hours=0.5,
        tests_jobs=80,
        sbatch_forbids=("exclusive",),  # nodes are shared
    ),
    "snellius": Centre(
        "SURF, servicedesk.surf.nl: Snellius partitions; SLURM batch system",
        gpus=4,
        cores=64,
        memory=720 * 1024,
        hours=120,
        asks={"partition": "gpu_h100"},
        sbatch_forbids=("exclusive",),  # a quarter of a node is the smallest part
    ),
    "jeanzay": Centre(
        "IDRIS, idris.fr: GPU Partitions (a job without --time has ten minutes). Users: all else",
        gpus=4,
        cores=96,
        hours=20,
        account=f"{PROJECT}@h100",
        asks={
            "constraint": "h100",
            "qos": "qos_gpu_h100-t3",
            "hint": "nomultithread",
            "gres": ...,
            "time": ...,
        },
        tests={"constraint": "h100", "qos": "qos_gpu_h100-dev"},
        tests_hours=2,
        tests_jobs=10,
        lines=("module load arch/h100",),
        forbids=MEMORY,
        sbatch_forbids=("exclusive",),
    ),
    "juwels-booster": Centre(
        "JSC, apps.fz-juelich.de: JUWELS Booster Overview; Batch system. JSC's courses, users: all else",
        gpus=4,
        cores=96,
        hours=24,
        whole=True,
        asks={"partition": "booster", "gres": "gpu:4"},
        tests={"partition": "develbooster", "gres": "gpu:4"},
        tests_hours=2,
        env={"NCCL_SOCKET_IFNAME": "ib0", "GLOO_SOCKET_IFNAME": "ib0"},
    ),
    "marenostrum5": Centre(
        "Users of MareNostrum 5, 2025 and 2026: 20 cores per GPU, memory by the cores",
        gpus=4,
        cores=80,
        hours=72,
        asks={"partition": "acc", "qos": "acc_ehpc", "gres": ...},
        tests={"partition": "acc", "qos": "acc_debug"},
        tests_hours=2,
        srun=("singularity", "--nv"),
        lines=("module load singularity",),
        forbids=MEMORY,
    ),
    "perlmutter": Centre(
        "NERSC, docs.nersc.gov: Queues and Charges; Node Types at NERSC. Users: all else",
        gpus=4,
        cores=128,
        hours=24,
        whole=True,
        account=f"{PROJECT}_g",
        asks={"constraint": "gpu&hbm80g", "qos": "regular"},
        tests={"constraint": "gpu&hbm80g", "qos": "debug"},
        tests_hours=0.5,
        tests_jobs=5,
        srun=("--cpu-bind=cores",),
        alone=("--gpus-per-task=1",),
        sbatch_forbids=("partition",),  # NERSC's queues are QoS
    ),
    "lumi": Centre(
        "LUMI: Slurm partitions; LUMI-G example batch scripts (2024-10); LUMI AI Guide (2026-04)",
        gpus=8,
        cores=56,
        memory=480 * 1024,
        hours=48,
        whole=True,
        asks={"partition": "standard-g"},
        tests={"partition": "dev-g"},
        tests_hours=3,
        tests_jobs=2,
        srun=(
            "--cpu-bind=mask_cpu:0xfe000000000000,0xfe00000000000000,0xfe0000,0xfe000000,0xfe,0xfe00,"
            "0xfe00000000,0xfe0000000000",
            "singularity",
        ),
        lines=("module use /appl/local/laifs/modules", "module load lumi-aif-singularity-bindings"),
        env={
            "MIOPEN_CUSTOM_CACHE_DIR": "/tmp/miopen-cache-${USER}",
            "MIOPEN_USER_DB_PATH": "/tmp/miopen-config-${USER}",
            "NCCL_SOCKET_IFNAME": "hsn",
        },
        forbids=("nv",),
    ),
    "vista": Centre(
        "TACC, docs.tacc.utexas.edu: Vista User Guide, tables 4 and 5 (2026-03-10)",
        gpus=1,
        cores=72,
        hours=48,
        whole=True,
        asks={"partition": "gh", "nodes": ..., "ntasks": ..., "time": ...},
        tests={"partition": "gh-dev"},
        tests_hours=2,
        tests_jobs=3,
        lines=("module load gcc cuda", "module load python3"),
        forbids=(*GPUS, *MEMORY, "export"),
    ),
    "teaching-1h": Centre(
        "no centre: one partition, jobs of one hour that are not requeued",
        gpus=8,
        cores=16,
        hours=1,
        account=None,
        asks={"no-requeue": None, "gres": ...},
        forbids=("requeue",),
        sbatch_forbids=("partition", "qos", "account"),
    ),
}
RUNS = [
    (name, processes)
    for name in CENTRES
    for processes in (1, 4, 8)
    if name != "teaching-1h" or processes == 1
]


class Script:
    """What a batch script asks of Slurm, read as Slurm reads it."""

    def __init__(self, text: str) -> None:
        self.lines = text.splitlines()
        directives = (shlex.split(line)[1] for line in self.lines if line.startswith("#SBATCH "))
        self.sbatch = dict(_option(word) for word in directives)
        lines = (
            re.sub(r"(\$\{\w+)\?[^}]*\}", r"\1}", line) for line in self.lines
        )  # what bash says if it is not set
        exports = (shlex.split(line)[1] for line in lines if re.match(r"export [A-Z_]+=", line))
        self.env = dict(word.split("=", 1) for word in exports)
        self.srun = shlex.split(next(line for line in self.lines if line.startswith("srun ")))

    def number(self, name: str) -> int:
        """The value of an option of sbatch that counts something."""
        return int(self.sbatch[name] or "")

    @property
    def tasks(self) -> int:
        """Tasks on a node."""
        return self.number("ntasks") // self.number("nodes")

    @property
    def gpus(self) -> int:
        """GPUs that it asks for on a node."""
        request = self.sbatch.get("gres") or self.sbatch.get("gpus-per-node") or "0"
        return int(request.rpartition(":")[2])

    def lacks(self, request: dict[str, str | EllipsisType | None]) -> list[str]:
        """The options of sbatch that it lacks, or has with another value."""
        return [
            name
            for name, value in request.items()
            if name not in self.sbatch or value not in (..., self.sbatch[name])
        ]


def _option(word: str) -> tuple[str, str | None]:
    name, equals, value = word.removeprefix("--").partition("=")
    return name, value if equals else None


@cache
def script(name: str, processes: int, tests: bool = False) -> Script:
    """The script of sixteen runs on a cluster, or of their rehearsal in its queue for tests."""
    profile = read_cluster(name).profile
    profile = profile.rehearsal if tests else profile
    shape = JobShape(profile.memory_bytes, profile.time_limit_seconds, profile.cpus, processes)
    return Script(script_of(profile, Path("/scratch/runs/study/.submitit"), "study", shape, 16))


@pytest.mark.parametrize(("name", "processes"), RUNS)
def test_a_script_has_what_the_centre_asks_for(name, processes):
    centre, rendered = CENTRES[name], script(name, processes)
    assert not rendered.lacks(centre.asks)
    assert rendered.sbatch.get("account") == centre.account
    assert not {*centre.srun, *(centre.alone if processes == 1 else ())} - {*rendered.srun}
    assert not {*centre.lines} - {*rendered.lines}
    assert {**rendered.env, **centre.env} == rendered.env


@pytest.mark.parametrize(("name", "processes"), RUNS)
def test_a_script_has_nothing_that_the_centre_forbids(name, processes):
    centre, rendered = CENTRES[name], script(name, processes)
    sbatch = [f"--{option}={value}" for option, value in rendered.sbatch.items()]
    for forbidden in (*centre.forbids, *centre.sbatch_forbids):
        options = sbatch if forbidden in centre.sbatch_forbids else [*sbatch, *rendered.srun]
        assert not [word for word in options if re.match(rf"--{re.escape(forbidden)}(=|$)", word)]


@pytest.mark.parametrize(("name", "processes"), RUNS)
def test_a_script_fits_the_nodes_of_the_centre(name, processes):
    """It takes as few nodes as can be, its share of their cores, and all of a node that it gets whole."""
    centre, rendered = CENTRES[name], script(name, processes)
    assert rendered.number("nodes") == -(-processes // centre.gpus)
    assert rendered.tasks == (centre.gpus if centre.whole else min(processes, centre.gpus))
    assert rendered.gpus == (0 if "gres" in centre.forbids else rendered.tasks)
    cpus = rendered.number("cpus-per-task")
    assert f"--cpus-per-task={cpus}" in rendered.srun, "srun no longer takes it from sbatch"
    assert cpus == centre.cores // centre.gpus
    if centre.memory is None:
        assert not {*MEMORY} & {*rendered.sbatch}
    else:
        assert (
            0 < int(rendered.sbatch["mem"].removesuffix("M")) <= centre.memory * rendered.tasks / centre.gpus
        )


@pytest.mark.parametrize("name", CENTRES)
def test_a_script_names_a_time_that_the_centre_gives(name):
    assert 0 < script(name, 1).number("time") <= 60 * CENTRES[name].hours


@pytest.mark.parametrize("name", [name for name, centre in CENTRES.items() if centre.tests])
def test_a_rehearsal_goes_to_the_queue_for_tests_and_stays_within_its_limits(name):
    centre, profile = CENTRES[name], read_cluster(name).profile.rehearsal
    rendered = script(name, 1, tests=True)
    assert not rendered.lacks(centre.tests)
    assert 0 < rendered.number("time") <= 60 * centre.tests_hours
    if centre.tests_jobs:
        assert (profile.max_queued or profile.max_parallel) <= centre.tests_jobs


@pytest.mark.parametrize("name", CENTRES)
def test_a_profile_says_where_it_is_from_what_to_fill_in_and_what_is_not_checked(name):
    head = re.match(r"(#.*\n)*", profile_files()[name].read_text())
    assert head
    assert re.search(r"^# Source, \d{4}-\d\d-\d\d: ", head[0], re.MULTILINE)
    assert "\n# Fill in: " in head[0]
    assert "\n# Not checked: " in head[0]


def test_every_profile_of_a_centre_is_held_against_its_document():
    generic = {"h100", "h200", "local", "slurm", "teaching", "workstation"}
    assert {*profile_files()} == {*CENTRES} | generic
