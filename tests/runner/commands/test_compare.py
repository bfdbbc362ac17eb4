"""`compare` finds the runs that it is given, says what changed, and exits with 1 only on a regression."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from analysis.report.build import build_report
from analysis.store.collect import collect
from model.record.config import CallConfig, RunConfig
from model.record.errors import UserError
from model.record.outcome import Outcome
from model.record.records import Provenance
from runner.cli.app import app
from tests.analysis.demo import certify
from tests.analysis.fabricate import Folder, inferred, plan

BEFORE, AFTER = "a" * 40, "b" * 40
MARGINS = ("--margin", "tokens_per_second=2%", "--margin", "loss=0.005")


def study(root: Path, sha: str, slower: float = 1, loss: float = 0, name: str = "backends") -> None:
    """Three seeds each of two backends; `flash` alone is slower or trains to another loss."""
    root.mkdir(exist_ok=True)
    for backend in ("auto", "flash"):
        key = certify(root, backend).key
        for seed in range(3):
            origin = Provenance(git_sha=sha, git_dirty=False, command=["runner"], version="0.1", code=sha)
            folder = Folder(root, plan(f"{sha[:2]}{backend}{seed}", name, backend, seed, provenance=origin))
            folder.start(certificate=key)
            changed = backend == "flash"
            for step in range(5, 101, 5):
                seconds = (0.4 + seed / 2000 + step % 3 / 1000) * (slower if changed else 1)
                final = 10 - step / 100 + seed / 1e4 + (loss if changed else 0)
                folder.step(step, seconds, loss=final)
            folder.end(final_loss=final)


@pytest.fixture(scope="module")
def roots(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`main` and `same` hold equal studies, in `slow` and `wrong` one backend became worse."""
    folder = tmp_path_factory.mktemp("roots")
    study(folder / "main", BEFORE)
    study(folder / "main", AFTER, slower=1.1)  # the same study, launched again at another commit
    study(folder / "same", AFTER)
    study(folder / "slow", AFTER, slower=1.1)
    study(folder / "slow", AFTER, name="other")
    study(folder / "wrong", AFTER, loss=0.1)
    return folder


@pytest.fixture(autouse=True)
def inside(roots: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.chdir(roots)
    yield


def compare(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["--root", "main", "compare", *arguments])


def test_nothing_worse_exits_with_0_and_says_by_which_margins() -> None:
    comparison = compare(f"backends@{BEFORE[:8]}", "same", *MARGINS)
    assert comparison.exit_code == 0
    assert (
        "no regression is established (margins: loss 0.005 nats, tokens_per_second 2 %)" in comparison.stderr
    )


@pytest.mark.refused
def test_a_copy_of_a_root_is_not_compared_with_its_original(tmp_path: Path) -> None:
    study(tmp_path / "main", BEFORE, name="first")
    shutil.copytree(tmp_path / "main" / "first", tmp_path / "before" / "first")
    shutil.copytree(
        tmp_path / "main" / ".certificates", tmp_path / "before" / ".certificates", dirs_exist_ok=True
    )
    comparison = compare(str(tmp_path / "before" / "first"), str(tmp_path / "main" / "first"), *MARGINS)
    assert isinstance(comparison.exception, UserError)
    assert "hold the same runs, attempt by attempt, as a copy does: they are one sample" in str(
        comparison.exception
    )


def test_a_slower_group_exits_with_1_and_is_named() -> None:
    comparison = compare(f"backends@{BEFORE[:8]}", "slow/backends", *MARGINS)
    assert comparison.exit_code == 1
    assert "flash: speed: Rate -9.09 %" in comparison.stderr
    assert "auto: " not in comparison.stderr
    lines = [line.split("  ") for line in comparison.stdout.splitlines()]
    assert next(line for line in lines if line[0] == "flash" and "slower" in line)


@pytest.mark.parametrize("source", ["report", "database"])
def test_a_study_counts_of_which_only_a_report_or_the_database_is_left(tmp_path: Path, source: str) -> None:
    study(tmp_path / "root", BEFORE)
    collect(tmp_path / "root")
    report = build_report(tmp_path / "root", "backends", tmp_path / "report").parent
    shutil.rmtree(tmp_path / "root" / "backends" if source == "database" else tmp_path / "root")
    side = report if source == "report" else tmp_path / "root/backends"
    comparison = compare(str(side), "slow/backends", *MARGINS)
    assert comparison.exit_code == 1, comparison.output
    assert "flash: speed: Rate -9.09 %" in comparison.stderr and "auto: " not in comparison.stderr


def test_another_loss_exits_with_1() -> None:
    comparison = compare(f"backends@{BEFORE[:8]}", "wrong", *MARGINS)
    assert comparison.exit_code == 1
    assert "flash: loss: Different: +0.1000 nats" in comparison.stderr


def test_a_study_before_and_after_a_commit_is_compared_in_one_root() -> None:
    comparison = compare(f"backends@{BEFORE[:8]}", f"backends@{AFTER[:8]}", *MARGINS)
    assert comparison.exit_code == 1
    assert f"ran at commit {BEFORE[:10]}" in comparison.stdout


def test_json_is_one_document_with_every_verdict() -> None:
    document = json.loads(compare(f"backends@{BEFORE[:8]}", "slow/backends", "--json", *MARGINS).stdout)
    verdicts = {
        group["label"]: (group["speed"]["kind"], group["loss"]["kind"]) for group in document["groups"]
    }
    assert verdicts == {"auto": ("equivalent", "equivalent"), "flash": ("different", "equivalent")}
    assert document["margins"] == {"tokens_per_second": 0.02, "loss": 0.005}
    assert len(document["regressions"]) == 1
    assert {difference["topic"]: difference["meant"] for difference in document["differences"]}[
        "commit"
    ] is True


def test_without_margins_the_exit_code_is_0_and_why_is_said_unless_it_is_to_be_strict() -> None:
    comparison = compare(f"backends@{BEFORE[:8]}", "slow/backends")
    assert comparison.exit_code == 0
    assert "no margin was stated" in comparison.stderr
    assert compare(f"backends@{BEFORE[:8]}", "slow/backends", "--strict").exit_code == 1


def test_an_outcome_that_became_worse_exits_with_1(tmp_path: Path) -> None:
    for name, outcome in (("first", "completed"), ("second", "oom_gpu"), ("expected", "oom_gpu")):
        expected = Outcome.OOM_GPU if name == "expected" else Outcome.COMPLETED
        folder = Folder(tmp_path / name, plan("r1", expected_outcome=expected))
        folder.start()
        folder.end(outcome)
    assert compare(str(tmp_path / "first"), str(tmp_path / "expected"), *MARGINS).exit_code == 0
    comparison = compare(str(tmp_path / "first"), str(tmp_path / "second"), *MARGINS)
    assert comparison.exit_code == 1
    assert "completed -> oom_gpu (worse)" in comparison.stdout
    assert "auto: outcome: oom_gpu, which no run had before" in comparison.stderr


@pytest.mark.refused
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("backend", "same"), r"did you mean 'backends'"),
        (("backends", "backends"), "are the same runs"),
        (("backends", "main/backends"), "are the same runs"),
        (("backends", "same/backend"), r"no runs of a study in .*same/backend: .*did you mean 'backends'"),
        (("backends", "slow"), "has several studies; name one: .*slow/backends, .*slow/other"),
        (
            ("backends@feed", "same"),
            r"no run of study 'backends' was planned at commit 'feed' .*aaaaaaaaaaaa",
        ),
        (("backends@main", "same"), "write a commit after @"),
        (("backends", "same", "--margin", "speed=2%"), "no margin 'speed' .*loss, tokens_per_second"),
        (("backends", "same", "--margin", "tokens_per_second=2"), "expected a percentage .* such as 1%"),
        (("backends", "same", "--margin", "loss=0"), "--margin loss=0: must be greater than 0"),
        (("backends", "same", "--across", "devise"), "did you mean 'device'"),
        (("backends", "same", "--match", "auto=fast"), "no group 'fast'"),
    ],
)
def test_what_cannot_be_compared_is_refused_with_what_to_type_instead(arguments, message) -> None:
    comparison = compare(*arguments)
    assert isinstance(comparison.exception, UserError)
    assert comparison.exception.exit_code == 2
    assert re.search(message, str(comparison.exception))


def test_runs_of_inference_are_compared_by_speed_and_not_by_losses_that_they_lack(tmp_path: Path) -> None:
    for side, slowdown in (("first", 0), ("second", 1e-5)):
        for repeat in (1, 2, 3):
            (tmp_path / side).mkdir(exist_ok=True)
            seconds = 0.1 + repeat / 1e4 + slowdown
            inferred(tmp_path / side, "flash", seconds=seconds, run_id=f"r{repeat}", repeat=repeat)
    comparison = compare(
        str(tmp_path / "first"), str(tmp_path / "second"), *MARGINS, "--across", "all", "--json"
    )
    (group,) = json.loads(comparison.stdout)["groups"]
    assert (group["speed"]["kind"], group["loss"]) == ("equivalent", None)
    assert comparison.exit_code == 0


@pytest.mark.refused
def test_a_study_of_attention_alone_is_refused(tmp_path: Path) -> None:
    config = RunConfig(task="attention", call=CallConfig(shape="B1 T128 H4 D64"))
    for side in ("first", "second"):
        (tmp_path / side).mkdir()
        Folder(tmp_path / side, plan("r1", config=config)).start()
    comparison = compare(str(tmp_path / "first"), str(tmp_path / "second"))
    assert isinstance(comparison.exception, UserError)
    assert "time attention alone" in str(comparison.exception)


def test_a_single_run_before_and_after_is_compared_by_its_records(tmp_path: Path) -> None:
    for sha, seconds in ((BEFORE, 0.4), (AFTER, 0.5)):
        origin = Provenance(git_sha=sha, git_dirty=False, command=["runner"], version="0.1")
        folder = Folder(tmp_path, plan(sha[:4], provenance=origin, seed=0))
        folder.start()
        for step in range(1, 101):
            folder.step(step, seconds + step % 4 / 1000, steps=1)
        folder.end()
    sides = [f"{tmp_path}/backends@{sha[:8]}" for sha in (BEFORE, AFTER)]
    comparison = compare(*sides, *MARGINS)
    assert comparison.exit_code == 0
    text = " ".join(comparison.stdout.split())
    assert "-19.94 % (-19.94 to -19.94) observed" in text
    assert "auto speed observed not a finding: in one run each" in text
    assert compare(*sides, *MARGINS, "--single-runs").exit_code == 1
