"""Facts about the machine are this process's own."""

import subprocess
import sys

import pytest

from model.measure import machine
from model.measure.machine import count_other_users, peak_memory_bytes


@pytest.mark.fault
def test_the_peak_of_a_run_is_not_that_of_the_launcher_that_started_it():
    large = bytearray(b"1") * (256 * 2**20)
    del large
    assert peak_memory_bytes("cpu") > 256 * 2**20
    code = "from model.measure.machine import peak_memory_bytes; print(peak_memory_bytes('cpu'))"
    completed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert 2**20 < int(completed.stdout) < 128 * 2**20


@pytest.mark.parametrize(
    ("listing", "users"),
    [
        ("GPU-a, 7\n", 0),
        ("GPU-a, 7\nGPU-a, 8\nGPU-a, 9\n", 2),
        ("GPU-a, 7\nGPU-b, 8\n", 0),
        ("GPU-a, 8\n", None),
        ("", None),
        ("No devices were found\n", None),
    ],
)
def test_other_users_of_the_gpu_are_counted_only_where_this_process_is_listed_too(listing, users):
    assert count_other_users(listing, 7) == users


def test_every_package_that_computes_is_among_the_versions(monkeypatch):
    monkeypatch.setattr(machine, "version", lambda package: f"1.{len(package)}")
    assert {"torch": "1.5", "triton": "1.6", "torchao": "1.7"}.items() <= machine.versions().items()


THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")


@pytest.mark.parametrize("setting", [None, "", "0", "banana"])
def test_processes_share_the_cores_where_nobody_says_how_many_threads_each_has(monkeypatch, setting):
    """OpenMP gives a process all cores also where what was said is no number of threads."""
    for name in THREADS:
        monkeypatch.setenv(name, setting or "")
        if setting is None:
            monkeypatch.delenv(name)
    monkeypatch.setattr(machine, "cores", lambda: 8)
    assert machine.thread_limits(None, 4) == dict.fromkeys(THREADS, "2")
    assert machine.thread_limits(3, 1) == dict.fromkeys(THREADS, "3")  # as the profile says
    assert machine.thread_limits(64, 2) == dict.fromkeys(THREADS, "4")  # which the machine has not
    assert machine.thread_limits(None, 100) == dict.fromkeys(THREADS, "1")
    assert machine.thread_limits(None) == {}
    for count in ("3", "2,1"):
        monkeypatch.setenv("OMP_NUM_THREADS", count)
        assert "OMP_NUM_THREADS" not in machine.thread_limits(None, 4)


@pytest.mark.parametrize(
    ("membership", "files", "cores"),
    [
        ("0::/a", {"a/cpu.max": "250000 100000"}, 2),
        ("0::/a/b", {"a/cpu.max": "50000 100000", "a/b/cpu.max": "max 100000"}, 1),
        ("0::/a", {"a/cpu.max": "max 100000"}, 8),
        ("3:cpu,cpuacct:/a", {"cpu/a/cpu.cfs_quota_us": "400000", "cpu/a/cpu.cfs_period_us": "100000"}, 4),
        ("3:cpu:/a", {"cpu/a/cpu.cfs_quota_us": "-1", "cpu/a/cpu.cfs_period_us": "100000"}, 8),
        ("", {}, 8),
    ],
)
def test_a_container_may_use_as_many_cores_as_it_is_given(tmp_path, monkeypatch, membership, files, cores):
    monkeypatch.setattr(machine.hostmemory, "PROC", tmp_path)
    monkeypatch.setattr(machine.hostmemory, "CGROUPS", tmp_path / "cgroup")
    monkeypatch.setattr("os.sched_getaffinity", lambda _: range(8), raising=False)
    for name, text in {
        "self/cgroup": membership,
        **{f"cgroup/{name}": files[name] for name in files},
    }.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    assert machine.cores() == cores
