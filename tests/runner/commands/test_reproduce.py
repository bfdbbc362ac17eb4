"""A repeat of a run that trains nothing is compared by the tokens that it decodes, or by its times."""

import pytest

from model.record.config import RunConfig
from model.record.folder import RunFolder
from runner.commands.reproduce import command, compare
from runner.execute import repeat
from runner.execute.repeat import Repeat
from runner.inputs.profile import read_cluster
from runner.state import ledger
from tests.analysis.fabricate import CASE, Folder, completed, inferred, plan
from tests.analysis.timed import kernels


def state(root, **options):
    return ledger.state(RunFolder(inferred(root, "flash", **options).path))


def test_tokens_that_are_the_same_are_said_to_be(tmp_path):
    comparison = compare(state(tmp_path / "a"), state(tmp_path / "b"))
    assert "the tokens of 4 decoded positions are the same" in comparison.verdict
    assert "loss" not in comparison.verdict


def test_the_first_position_that_differs_is_named(tmp_path):
    then, now = state(tmp_path / "a"), state(tmp_path / "b")
    path = now.latest.path / "decode.jsonl"
    path.write_text(path.read_text().replace("[7,2]", "[7,3]"))
    assert "the tokens of 1 of 4 decoded positions differ, from number 3 on" in compare(then, now).verdict


@pytest.mark.fault
def test_where_nothing_was_decoded_nothing_is_claimed(tmp_path):
    then, now = (state(tmp_path / name, decode_seconds=None) for name in "ab")
    assert "no decoded tokens to compare" in compare(then, now).verdict


def timed(root, **fields):
    folder = Folder(root, plan("r1", config=RunConfig(task="attention")))
    folder.start()
    kernels(folder, CASE, **fields)
    folder.end()
    return ledger.state(RunFolder(folder.path))


def test_times_are_compared_as_ratios_and_nobody_claims_that_they_are_the_same(tmp_path):
    then, now = (
        timed(tmp_path / "a", flash=1.0, math="oom_gpu"),
        timed(tmp_path / "b", flash=1.1, math="oom_gpu"),
    )
    verdict = compare(then, now).verdict
    assert "all 8 calls end the same way; their times are 1.10 to 1.10 of what they were" in verdict


@pytest.mark.fault
def test_a_backend_that_ends_otherwise_is_counted_and_where_nothing_was_timed_nothing_is_claimed(tmp_path):
    then, now = timed(tmp_path / "a", flash=1.0, math=4.0), timed(tmp_path / "b", flash=1.0, math="wrong")
    assert "4 of 8 calls end differently" in compare(then, now).verdict
    untimed = timed(tmp_path / "c", flash="wrong")
    assert "no times to compare" in compare(untimed, untimed).verdict


@pytest.mark.parametrize(
    ("phase", "advice"),
    [("running", "waits for this repeat, which goes on"), ("ended", "repeats it anew")],
)
def test_whoever_interrupts_a_repeat_is_told_what_to_type_next(tmp_path, monkeypatch, capsys, phase, advice):
    folder = Folder(tmp_path, plan("r2", study="backends.reproduced"))
    folder.start()
    if phase == "ended":
        folder.end()
    original = ledger.state(RunFolder(completed(tmp_path, "r1").path))
    repeated = Repeat(original, RunFolder(folder.path), tmp_path, read_cluster("local"))
    monkeypatch.setattr(repeat, "prepare", lambda *_: repeated)

    def interrupted(_: Repeat) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(repeat, "wait_for", interrupted)
    with pytest.raises(KeyboardInterrupt):
        command("r1")
    assert f"next: the same command {advice}" in capsys.readouterr().err
