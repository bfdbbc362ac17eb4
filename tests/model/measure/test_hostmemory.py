"""What is left of the host's memory, and a limit on what a run's processes have in use."""

import os
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from model.measure import hostmemory
from tests.conftest import REPOSITORY, until

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


def group(folder, limit, used, files=0):
    return {
        f"cgroup/{folder}/memory.max": limit,
        f"cgroup/{folder}/memory.current": used,
        f"cgroup/{folder}/memory.stat": f"anon 5\ninactive_file {files}",
    }


def older_group(folder, limit, used, files=0):
    return {
        f"cgroup/memory/{folder}/memory.limit_in_bytes": limit,
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


GROWS = "import os; from model.measure.hostmemory import oom_kills; print(oom_kills()); os.fork() or bytearray(2**28); print(os.wait()[1], oom_kills())"


@pytest.mark.fault
@pytest.mark.skipif(
    not os.access("/sys/fs/cgroup/memory/memory.oom_control", os.W_OK),
    reason="needs root, and memory control groups of version 1",
)
def test_a_child_that_outgrows_its_group_is_counted_there_and_nowhere_else():
    group = Path(f"/sys/fs/cgroup/memory/assay-test-{os.getpid()}")
    group.mkdir()
    kills_before = hostmemory.oom_kills()
    try:
        (group / "memory.limit_in_bytes").write_text(str(2**27))
        join = f'echo $$ >{group}/cgroup.procs; exec "$@"'
        completed = subprocess.run(
            ["sh", "-c", join, "sh", sys.executable, "-c", GROWS], capture_output=True, text=True, check=True
        )
    finally:
        group.rmdir()
    assert completed.stdout.split() == ["0", "9", "1"]
    assert hostmemory.oom_kills() == kills_before


# Sets a limit over what the process has in use, then does something, and prints what became of it.
LIMITED = """
import mmap, os, subprocess, sys, threading, time
from model.measure.hostmemory import Limit, _in_use, _numbers, PROC

MIB = 2**20
used = _in_use(dict(_numbers(PROC / "self/status")))
apart = []
limit = Limit(used + 200 * MIB, "`memory` of profile p", apart=lambda: apart)
limit._look_again = 0.0

def ended(reason):
    print("ended:", reason, flush=True)
    os._exit(0)

limit.watch(ended)
limit.hold()
done = threading.Event()
CHILD = "import sys, time; x = bytearray(300 * 2**20); print(flush=True); time.sleep(3)"
{work}
time.sleep(3)
print("held")
os._exit(0)
"""
STACKS = "[threading.Thread(target=done.wait, daemon=True).start() for _ in range(60)]"
# As while sixteen processes are joined and a checkpoint is read.
SPARSE = "limit.exceeded = lambda: None\n" + (
    "m = mmap.mmap(-1, 400 * MIB, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS); "
    + STACKS
    + "; bytearray(64 * MIB)"
)
FILE = """
with open(sys.argv[1], "wb") as file: file.truncate(400 * MIB)
m = mmap.mmap(os.open(sys.argv[1], os.O_RDONLY), 400 * MIB, access=mmap.ACCESS_READ); sum(m[::4096])
"""
ALL_USED = "held = b'x' * 1024 * MIB"
GROWTH = "held = []\nwhile True: held.append(bytearray(b'x' * 10 * MIB)); time.sleep(0.05)"
SHARED = (
    "x = bytearray(b'x' * 120 * MIB)\nfor _ in range(3):\n  if os.fork() == 0: time.sleep(4); os._exit(0)"
)
CHILDS = "p = subprocess.Popen([sys.executable, '-c', CHILD], stdout=-1); p.stdout.readline()"
APART = CHILDS + "; apart.append(p.pid)"
AT_ONCE = """
try: bytearray(8 * 2**30)
except MemoryError: print("refused", limit.state(), flush=True); os._exit(0)
"""


@pytest.mark.fault
@pytest.mark.parametrize(
    ("work", "printed"),
    [
        pytest.param(STACKS, "held", id="stacks of threads"),
        pytest.param(SPARSE, "held", id="mapped and never touched while nobody looks"),
        pytest.param(FILE, "held", id="pages of a file"),
        pytest.param(SHARED, "held", id="pages that forked processes share"),
        pytest.param(GROWTH, "ended: out of host memory: ", id="grows little by little"),
        pytest.param(ALL_USED, "ended: out of host memory: ", id="more than there is, and in use"),
        pytest.param(CHILDS, "ended: out of host memory: ", id="a process that it started"),
        pytest.param(AT_ONCE, "refused ", id="more at once than there is"),
    ],
)
def test_a_limit_counts_what_processes_have_in_use_and_nothing_else(tmp_path, work, printed):
    """On 64 cores, threads' stacks and libraries' buffers alone map more than a small run may use."""
    command = [sys.executable, "-c", LIMITED.replace("{work}", work), str(tmp_path / "file")]
    completed = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, check=True)
    assert completed.stdout.startswith(printed), completed
    assert ("in use (`memory` of profile p)" in completed.stdout) == (printed != "held")


@pytest.mark.fault
def test_a_process_with_a_limit_of_its_own_is_not_counted():
    """The processes of one run watch themselves, also the first one, which has started the others."""
    work = "apart.append(0)\n" + APART.replace("p.stdout.readline()", "apart[0] = p.pid; p.stdout.readline()")
    completed = subprocess.run(
        [sys.executable, "-c", LIMITED.replace("{work}", work)],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        check=True,
    )
    assert completed.stdout == "held\n"


def test_a_look_that_a_busy_machine_makes_long_does_not_put_off_the_next(monkeypatch):
    """A pause is as long as 20 looks, so that they cost little; by the clock, that would be 4 seconds here."""
    limit, pauses = hostmemory.Limit(GIB, "p"), []

    def pause(seconds):
        pauses.append(seconds)
        limit.release()

    monkeypatch.setattr(limit, "exceeded", lambda: time.sleep(0.2))
    monkeypatch.setattr(hostmemory, "time", SimpleNamespace(**{**vars(time), "sleep": pause}))
    limit.watch(pytest.fail)
    until(lambda: pauses)
    assert pauses[0] < 1


def test_without_a_limit_nothing_is_watched_or_said():
    limit = hostmemory.Limit(None, "nobody")
    limit.watch(pytest.fail)
    limit.hold()
    limit.release()
    assert (limit.exceeded(), limit.state()) == (None, None)


@pytest.mark.parametrize(
    ("membership", "folder", "files"),
    [
        ("0::/a", "cgroup/a", ("memory.max", "memory.events", "memory.peak")),
        ("4:memory:/a\n0::/", "cgroup/memory/a", ("memory.limit_in_bytes", "memory.oom_control", "memory.max_usage_in_bytes")),
    ],
)  # fmt: skip
def test_the_kernel_enforces_a_limit_where_a_group_can_be_made(
    machine, tmp_path, monkeypatch, membership, folder, files
):
    machine(**{"proc/self/cgroup": membership})
    (tmp_path / folder).mkdir(parents=True)
    group = hostmemory.ControlGroup.make("assay-7", 3 * GIB, "`memory` of profile p")
    assert (tmp_path / folder / "assay-7" / files[0]).read_text() == str(3 * GIB)
    group.add(7)
    assert (tmp_path / folder / "assay-7" / "cgroup.procs").read_text() == "7"
    assert group.killed() is None
    machine(**{f"{folder}/assay-7/{files[1]}": "oom_kill 1", f"{folder}/assay-7/{files[2]}": 3 * GIB + 1})
    assert group.killed() == "3.0 GiB of 3.0 GiB in use (`memory` of profile p)"
    machine(**{f"{folder}/assay-7/{files[2]}": 2 * GIB})
    assert group.killed() == "2.0 GiB in use; this machine had no more"
    machine(**{f"{folder}/{files[0]}": 2 * GIB, f"{folder}/../{files[0]}": 2**63 - 4096})
    parent = tmp_path / folder
    assert (
        group.killed() == f"2.0 GiB in use; control group {parent}, which allows 2.0 GiB in all, had no more"
    )
    assert hostmemory.ControlGroup.make("assay-7", GIB, "p") is None  # it is there


def test_no_group_is_made_where_the_system_does_not_let_us(machine):
    machine(**{"proc/self/cgroup": "0::/nowhere"})
    assert hostmemory.ControlGroup.make("assay-7", GIB, "p") is None
