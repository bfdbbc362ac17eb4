"""What is said of the root's filesystem."""

from types import SimpleNamespace

import psutil
import pytest

from runner.commands import doctor
from runner.inputs.profile import read_cluster
from runner.state import filesystem
from runner.state.filesystem import of_mount

SLURM = "slurm: {}\ncpus: 1\n"


@pytest.mark.parametrize(
    ("kind", "options", "shared", "locks"),
    [
        ("lustre", "rw,flock,lazystatfs", True, True),
        ("lustre", "rw,localflock", True, False),
        ("lustre", "rw,noflock", True, False),
        ("lustre", "rw", True, False),
        ("nfs4", "rw,vers=4.2,local_lock=none", True, True),
        ("nfs", "rw,nolock", True, False),
        ("nfs", "rw,local_lock=all", True, False),
        ("gpfs", "rw", True, True),
        ("xfs", "rw", False, True),
        ("fuse.sshfs", "rw", None, None),
    ],
)
def test_a_mount_promises_what_its_type_and_options_say(kind, options, shared, locks):
    mount = of_mount(kind, options)
    assert (mount.shared, mount.locks) == (shared, locks)


def filesystem_check(root, executor):
    (profile := root.parent / f"{executor}.yaml").write_text(
        f"executor: {executor}\n{SLURM * (executor == 'slurm')}"
    )
    return next(
        check for check in doctor.checks(read_cluster(str(profile)), root) if check.what == "filesystem"
    )


def test_the_innermost_and_newest_mount_counts(tmp_path, monkeypatch):
    root = str(tmp_path)
    mounts = [("/", "ext4", ""), (root, "nfs", ""), (root, "lustre", "rw,localflock"), ("/proc", "proc", "")]
    partitions = [
        SimpleNamespace(mountpoint=place, fstype=kind, opts=options) for place, kind, options in mounts
    ]
    monkeypatch.setattr(psutil, "disk_partitions", lambda **_: partitions)
    (tmp_path / "runs").mkdir()
    assert filesystem.promise(tmp_path.parent).kind == "ext4"
    for executor in ("slurm", "local"):
        check = filesystem_check(tmp_path / "runs", executor)
        assert check.mark == "no"
        assert "lustre: file locks hold on one node only" in check.found


def test_a_disk_of_one_machine_is_right_for_this_machine_and_not_for_a_cluster(tmp_path, monkeypatch):
    disk = SimpleNamespace(mountpoint="/", fstype="xfs", opts="rw")
    monkeypatch.setattr(psutil, "disk_partitions", lambda **_: [disk])
    root = tmp_path / "runs"
    assert [filesystem_check(root, executor).mark for executor in ("local", "slurm")] == ["ok", "no"]
