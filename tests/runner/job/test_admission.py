"""A run trains only with a certificate that its attention backend is right, here and for its shape."""

import json
import os
import signal
import subprocess
import sys

import pytest

from model.attention.verify.identity import key_of
from model.record.case import Case
from runner.job import admission
from runner.job.trial import Crashed
from tests.analysis.fabricate import certificate

pytestmark = pytest.mark.trains

CASE = Case("cpu", "float32", batch=2, sequence_length=32, heads=2, kv_heads=1, head_dim=16)
PLANTED = """
import os, signal
from model.attention import Backend, Kernels, Launches
from model.attention.tiled import backend as tiled

def half(q, k, v, causal):
    return tiled.attend(q / 2, k, v, causal)

def crash(q, k, v, causal):
    os.kill(os.getpid(), signal.SIGSEGV)

def refuse(q, k, v, causal):
    raise RuntimeError("no such tile")

def takes(case):  # little: `runner verify` tries all that a backend takes
    return [] if case.dtype == "float32" and case.sequence_length < 64 else ["is long"]

def made(attend):
    return Backend("planted", takes, attend, launches=Launches(cpu=Kernels("_Tiled", "_TiledBackward", operators=True)))

half, crash, refuse = made(half), made(crash), made(refuse)
"""


@pytest.fixture
def planted(tmp_path):
    """The environment in which another package registers backends that are wrong."""
    (tmp_path / "site" / "planted-1.0.dist-info").mkdir(parents=True)
    (tmp_path / "site" / "planted_backends.py").write_text(PLANTED)
    info = tmp_path / "site" / "planted-1.0.dist-info"
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: planted\nVersion: 1.0\n")
    names = ("half", "crash", "refuse")
    points = "\n".join(f"{name} = planted_backends:{name}" for name in names)
    (info / "entry_points.txt").write_text(f"[assay.attention]\n{points}\n")
    return {"PYTHONPATH": str(tmp_path / "site")}


def certificates(root):
    return list((root / ".certificates").glob("*.json"))


def test_a_run_names_its_certificate_and_runs_of_one_shape_share_it(runner, study, root):
    runner(
        "launch", study("matrix: {seed: [0, 1]}\n"), rc=0
    )  # as other tests that train: its trial is held once
    (file,) = certificates(root)
    keys = [
        json.loads(path.read_text())["certificate"] for path in root.glob("tiny/*/attempt-1/manifest.json")
    ]
    assert keys == [file.stem] * 2
    record = json.loads(file.read_text())
    assert (record["backend"], record["verdict"], record["case"]["sequence_length"]) == ("auto", "right", 32)


@pytest.mark.fault
def test_a_torn_certificate_is_made_again(root, tmp_path, monkeypatch):
    monkeypatch.setenv("RUNNER_CERTIFICATES", str(tmp_path / "own"))
    trials = []

    def held(trial, *_):
        trials.append(trial)
        return iter([right])

    monkeypatch.setattr(admission, "run_trials", held)
    key = key_of("tiled", CASE.device, CASE)
    right = certificate(tmp_path, "tiled", case=CASE, device="cpu").model_copy(update={"key": key})
    assert admission.admit("tiled", CASE, root, []) == admission.admit("tiled", CASE, root, []) == right
    for path in (root / ".certificates" / f"{key}.json", tmp_path / "own" / f"{key}.json"):
        path.write_text(path.read_text()[:100])
    assert admission.admit("tiled", CASE, root, []) == right
    assert trials == [[admission.Trial("tiled", CASE)]] * 2
    assert (
        len(certificates(root)) == 1 and json.loads(certificates(root)[0].read_text())["verdict"] == "right"
    )


@pytest.mark.fault
def test_a_run_whose_trial_was_killed_dies_the_same_way_so_that_its_outcome_shows_it(
    root, tmp_path, monkeypatch
):
    monkeypatch.setenv("RUNNER_CERTIFICATES", str(tmp_path / "own"))
    signals = []
    monkeypatch.setattr(admission, "run_trials", lambda trials, *_: [Crashed(trials[0], -signal.SIGKILL)])
    monkeypatch.setattr(admission.os, "kill", lambda *signal: signals.append(signal))
    with pytest.raises(admission.Killed):  # nothing follows the signal
        admission.admit("tiled", CASE, root, [])
    assert signals == [(os.getpid(), signal.SIGKILL)]


SAYS = {
    "half": "attention backend 'half' failed verification here: ",
    "refuse": "no such tile",
    "crash": "attention backend 'crash' was killed by SIGSEGV during its trial",
}


@pytest.mark.fault
def test_wrong_backends_end_failed_before_their_first_step(runner, study, root, planted):
    runner("launch", study(f"matrix: {{attention: [{', '.join(SAYS)}]}}\n"), rc=1, **planted)
    runs = [path.parent for path in root.glob("tiny/*/run.json")]
    assert len(runs) == len(SAYS)
    for run in runs:
        name = json.loads((run / "run.json").read_text())["config"]["attention"]
        result = json.loads((run / "attempt-1" / "result.json").read_text())
        assert (result["outcome"], result["steps"]) == ("failed", 0)
        assert SAYS[name] in result["reason"]
        assert not (run / "attempt-1" / "steps.jsonl").exists()


def test_verify_keeps_certificates_and_says_which_backend_is_wrong(runner, root, planted):
    process = runner(
        "verify", "-b", "half", "-b", "crash", "-b", "flash3", "--device", "cpu", "--json", rc=1, **planted
    )
    records = {record["backend"]: record for record in json.loads(process.stdout)}
    assert {name: record["verdict"] for name, record in records.items()} == {
        "half": "wrong", "crash": "wrong", "flash3": "unsupported",
    }  # fmt: skip
    assert any(check["name"] == "right" and not check["passed"] for check in records["half"]["checks"])
    assert "SIGSEGV" in records["crash"]["reasons"][0]
    assert len(certificates(root)) == 3
    rows = json.loads(runner("sql", "from certificates order by attention", "--format", "json", rc=0).stdout)
    assert [(row["attention"], row["verdict"]) for row in rows] == [
        ("crash", "wrong"), ("flash3", "unsupported"), ("half", "wrong"),
    ]  # fmt: skip


@pytest.mark.refused
def test_verify_refuses_a_backend_that_does_not_exist(runner, root):
    assert "did you mean 'tiled'" in runner("verify", "-b", "tilde", rc=2).stderr
    assert not certificates(root)


@pytest.mark.refused
def test_a_backend_that_does_not_exist_is_refused_before_torch_is_imported():
    code = """
import sys
from model.record.errors import UserError
from runner.commands.verify import command
try:
    command(backend=["flsh"])
except UserError as error:
    print(error, "torch" in sys.modules)
"""
    process = subprocess.run([sys.executable, "-P", "-c", code], capture_output=True, text=True, check=True)
    assert process.stdout.startswith("unknown attention backend 'flsh' (did you mean 'flash'?")
    assert process.stdout.endswith("False\n")
