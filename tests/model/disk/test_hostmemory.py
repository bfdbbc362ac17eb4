"""What is left of the host's memory is the least that the machine and each control group leave."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from model.disk import hostmemory

GIB = 2**30


@pytest.fixture
def machine(tmp_path, monkeypatch):
    """Write files below a /proc and a /sys/fs/cgroup of its own."""
    monkeypatch.setattr(hostmemory, "PROC", tmp_path / "proc")
    monkeypatch.setattr(hostmemory, "CGROUPS", tmp_path / "cgroup")

    def write(**files):
        for name, text in files.items():
            path = tmp_path / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(f"{text}\n")

    write(**{"proc/meminfo": f"MemTotal: 1 kB\nMemAvailable: {64 * 2**20} kB\nHugePages_Total: 0"})
    return write


def group(folder, most, used, files=0):
    return {
        f"cgroup/{folder}/memory.max": most,
        f"cgroup/{folder}/memory.current": used,
        f"cgroup/{folder}/memory.stat": f"anon 5\ninactive_file {files}",
    }


def older_group(folder, most, used, files=0):
    return {
        f"cgroup/memory/{folder}/memory.limit_in_bytes": most,
        f"cgroup/memory/{folder}/memory.usage_in_bytes": used,
        f"cgroup/memory/{folder}/memory.stat": f"inactive_file 1\ntotal_inactive_file {files}",
    }


def test_without_groups_it_is_what_the_machine_has(machine):
    assert hostmemory.left() == 64 * GIB


def test_files_of_a_group_can_be_given_up(machine):
    machine(
        **{"proc/self/cgroup": "0::/slurm/job_7"}, **group("slurm/job_7", 20 * GIB, 15 * GIB, files=3 * GIB)
    )
    assert hostmemory.left() == 8 * GIB


def test_a_group_around_its_own_may_leave_less(machine):
    machine(
        **{"proc/self/cgroup": "0::/slurm/job_7/step_0"},
        **group("slurm/job_7/step_0", "max", GIB),
        **group("slurm/job_7", 20 * GIB, 15 * GIB),
        **group("slurm", 40 * GIB, 39 * GIB),
    )
    assert hostmemory.left() == GIB


def test_the_first_version_of_groups_is_read_too(machine):
    machine(
        **{"proc/self/cgroup": "9:name=systemd:/\n4:cpu,memory:/slurm/job_7\n0::/"},
        **older_group("slurm/job_7", 4 * GIB, 3 * GIB),
        **older_group("", 2**63 - 4096, 30 * GIB),
    )
    assert hostmemory.left() == GIB


def test_a_group_that_has_more_than_its_limit_leaves_nothing(machine):
    machine(**{"proc/self/cgroup": "0::/a"}, **group("a", GIB, 2 * GIB))
    assert hostmemory.left() == 0


def test_where_nothing_says_it_nothing_is_known(machine, tmp_path):
    (tmp_path / "proc/meminfo").unlink()
    assert hostmemory.left() is None


def test_this_machine_says_it():
    assert hostmemory.left() > 0


def killed(number):
    return f"oom_kill_disable 0\nunder_oom 0\noom_kill {number}"


def test_what_ends_other_jobs_of_a_shared_node_is_not_counted(machine):
    machine(**{
        "proc/vmstat": "pgfault 7\noom_kill 9",
        "proc/self/cgroup": "4:cpu,memory:/slurm/job_7\n0::/",
        "cgroup/memory/slurm/job_7/memory.oom_control": killed(2),
        "cgroup/memory/slurm/memory.oom_control": killed(5),
    })  # fmt: skip
    assert hostmemory.oom_kills() == 2
    machine(**{
        "proc/self/cgroup": "0::/slurm/job_7",
        "cgroup/slurm/job_7/memory.events": "low 0\noom 4\noom_kill 3\noom_group_kill 0",
    })  # fmt: skip
    assert hostmemory.oom_kills() == 3


def test_where_no_group_counts_them_those_of_the_machine_are(machine):
    machine(**{"proc/vmstat": "pgfault 7\noom_kill 9", "proc/self/cgroup": "4:memory:/elsewhere\n0::/"})
    assert hostmemory.oom_kills() == 9


GROWS = "import os; from model.disk.hostmemory import oom_kills; print(oom_kills()); os.fork() or bytearray(2**28); print(os.wait()[1], oom_kills())"


@pytest.mark.fault
@pytest.mark.skipif(
    not os.access("/sys/fs/cgroup/memory/memory.oom_control", os.W_OK),
    reason="needs root, and memory control groups of version 1",
)
def test_a_child_that_outgrows_its_group_is_counted_there_and_nowhere_else():
    group = Path(f"/sys/fs/cgroup/memory/assay-test-{os.getpid()}")
    group.mkdir()
    before = hostmemory.oom_kills()
    try:
        (group / "memory.limit_in_bytes").write_text(str(2**27))
        join = f'echo $$ >{group}/cgroup.procs; exec "$@"'
        done = subprocess.run(
            ["sh", "-c", join, "sh", sys.executable, "-c", GROWS], capture_output=True, text=True, check=True
        )
    finally:
        group.rmdir()
    assert done.stdout.split() == ["0", "9", "1"]
    assert hostmemory.oom_kills() == before
