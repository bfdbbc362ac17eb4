"""What `runner doctor --profile` sees from a login node without asking Slurm."""

import errno
import sys
import tempfile

import pytest

from runner.commands import _slurm_checks, doctor
from runner.inputs.profile import Cluster, Profile, read_cluster


@pytest.fixture
def found(tmp_path, monkeypatch):
    """The checks of a profile on Slurm with these keys, by name; `tmp_path` is the home."""
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("EDF_PATH", raising=False)
    monkeypatch.setenv("SCRATCH", str(tmp_path / "scratch"))

    def ask(keys):
        path = tmp_path / "cluster.yaml"
        path.write_text(f"executor: slurm\n{keys}\n" + ("" if "slurm:" in keys else "slurm: {}\n"))
        checks = _slurm_checks.check_places(read_cluster(str(path)), tmp_path / "scratch" / "runs")
        return {check.what: (check.mark, check.found) for check in checks}

    return ask


def edf(tmp_path, text):
    (tmp_path / ".edf").mkdir(exist_ok=True)
    (tmp_path / ".edf" / "assay.toml").write_text(text)


EDF = "python: python3\ncontainer: {kind: edf, name: assay}"


def test_an_environment_that_names_an_image_and_mounts_the_root_is_well(found, tmp_path):
    (tmp_path / "scratch").mkdir()
    (tmp_path / "scratch" / "a.sqsh").touch()
    edf(tmp_path, 'image = "${SCRATCH}/a.sqsh"\nmounts = ["/nowhere", "${SCRATCH}:${SCRATCH}:rw"]\n')
    checks = found(EDF)
    assert {mark for mark, _ in checks.values()} == {"ok"}
    assert checks["image"][1] == f"{tmp_path}/scratch/a.sqsh"
    assert checks["job's python"][1] == "python3, in the container: not tried"


@pytest.mark.refused
@pytest.mark.parametrize(
    ("text", "check", "message"),
    [
        (None, "container", "no file {home}/.edf/assay.toml"),
        ("image = ", "container", "{home}/.edf/assay.toml: "),
        ('image = "${SCRATCH}/a.sqsh"\nmounts = ["/"]', "image", "{home}/scratch/a.sqsh is not here"),
        (
            'image = "nvcr.io#nvidia/pytorch:26.02-py3"',
            "mounts",
            "add {home}/scratch/runs:{home}/scratch/runs",
        ),
        ('mounts = ["${SCRATCH}:/scratch"]', "mounts", "do not show {home}/scratch/runs at its own path"),
    ],
)
def test_an_environment_that_lacks_something_is_named(found, tmp_path, text, check, message):
    if text is not None:
        edf(tmp_path, text)
    mark, finding = found(EDF)[check]
    assert mark == "FAILS"
    assert message.format(home=tmp_path) in finding


def test_an_environment_that_inherits_mounts_is_not_judged_by_its_own(found, tmp_path):
    edf(tmp_path, 'base_environment = "common"')
    assert "mounts" not in found(EDF)


@pytest.mark.parametrize(
    ("keys", "check", "mark", "message"),
    [
        ("python: /no/python", "job's python", "FAILS", "/no/python is no program here"),
        ("python: python3", "job's python", "ok", "not tried"),
        ("python: $VENV/bin/python", "job's python", "ok", "not tried"),
        ("", "job's python", "ok", "which jobs must see at the same place"),
        ("python: /in/it/python\ncontainer: {kind: uenv, name: 'pytorch/v2.9.1:v2'}", "job's python", "ok", "perhaps in the uenv"),
        ("python: p\ncontainer: {kind: uenv, name: /no/a.squashfs}", "image", "FAILS", "/no/a.squashfs is not here"),
        ("python: p\ncontainer: {kind: apptainer, image: /no/a.sif}", "image", "FAILS", "/no/a.sif is not here"),
        ("python: p\ncontainer: {kind: apptainer, image: 'docker://a/b'}", "image", "ok", "not tried"),
        ("python: p\ncontainer: {kind: pyxis, image: a#b, mounts: ['/opt:/opt']}", "mounts", "FAILS", "`mounts` of the profile"),
        ("slurm: {setup: [module load a, module load b]}", "setup", "ok", "2 lines of the profile run in jobs alone: not tried"),
        ("slurm: {account: your-project@h100}", "to fill in", "FAILS", "cluster.yaml:2:9: 'your-project@h100': put your own project"),
    ],
)  # fmt: skip
def test_what_cannot_be_tried_is_said_and_what_is_not_there_fails(found, keys, check, mark, message):
    checks = found(keys)
    assert checks[check][0] == mark
    assert message in checks[check][1]


def test_a_profile_that_is_filled_in_has_nothing_to_fill_in(found):
    assert "to fill in" not in found("slurm: {account: p123}")


@pytest.mark.fault
def test_a_quota_that_is_used_up_is_named(found, monkeypatch):
    def full(**place):
        raise OSError(errno.EDQUOT, "Disk quota exceeded")

    monkeypatch.setattr(tempfile, "TemporaryFile", full)
    mark, finding = found("")["room"]
    assert mark == "FAILS"
    assert finding.endswith("Disk quota exceeded; choose another place with --root")


@pytest.mark.fault
@pytest.mark.parametrize(("python", "mark"), [("/opt/venv/bin/python", "no"), (None, "FAILS")])
def test_a_login_node_needs_a_torch_only_if_its_python_is_that_of_the_jobs(
    monkeypatch, tmp_path, python, mark
):
    monkeypatch.setitem(sys.modules, "torch", None)
    settings = {"executor": "slurm", "cpus": 1, "processes_per_node": 2, "python": python, "slurm": {}}
    (tmp_path / "a.yaml").write_text("executor: slurm\nslurm: {}\n")
    document = read_cluster(str(tmp_path / "a.yaml")).document
    checks = {
        check.what: check
        for check in doctor.checks(Cluster("a", Profile.model_validate(settings), document), tmp_path)
    }
    assert checks["torch"].mark == mark
    assert checks["processes"].works
    assert not any(name.startswith("attention") for name in checks)
