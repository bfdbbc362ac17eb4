"""A study that was edited keeps what it still has: everything else is named at launch and left out of reports."""

import json
import shutil
from datetime import UTC, datetime, timedelta

import pytest

from analysis.audit.audit import audit
from analysis.report.build import build_report
from analysis.store.collect import collect
from analysis.store.database import open_for_reading
from analysis.verdicts.source import StudySource, read
from model.record.folder import study_record
from model.record.outcome import Outcome
from runner.commands._start import first_round, without_idle_repeats
from runner.execute.launch import submit
from runner.inputs.document import InvalidFile
from runner.inputs.expansion import expand
from runner.inputs.profile import read_cluster
from runner.inputs.study import read_study
from runner.plan.plan import plan, planned_again, rehearsal, write_runs
from runner.state import ledger
from runner.state.endings import Ending
from runner.state.runs import states
from tests.analysis import fabricate
from tests.analysis.fabricate import Folder

RATES = "matrix: {{train.learning_rate: [{}], seed: [0, 1]}}\n"
TWO, OTHER = RATES.format("1e-3, 3e-3"), RATES.format("1e-3, 1e-2")


@pytest.fixture
def launch(study, root, monkeypatch):
    """Launch a study whose runs complete at once; returns what it no longer has, by what differs."""

    def launched(extra, scale="full", sets=(), only=(), path=None):
        parsed = read_study(path or study(extra))
        design = parsed.design(scale)
        until = None if only else design.until
        cells = expand(parsed, scale, sets, only, until.at_most if until else None)
        planned = plan(parsed, without_idle_repeats(cells, design), scale, read_cluster("local"), root, sets)
        tasks = write_runs(first_round(planned, design) if until else planned)
        monkeypatch.setattr(fabricate, "START", datetime.now(UTC) - timedelta(minutes=1))  # they take one
        for task in tasks:
            train(task)
        return gone(planned.record.removed)

    return launched


def train(task):
    """What a run leaves on disk, without running it."""
    assert ledger.claim(task.folder, task.number, "local")
    folder = Folder.__new__(Folder)
    folder.run, folder.path = task.folder.run, task.folder.path
    shutil.rmtree(folder.path / f"attempt-{task.number}")  # `start` makes it again
    folder.start(task.number)
    for step in range(1, folder.run.config.train.steps + 1):
        folder.step(step, steps=1, attempt=task.number)
    folder.end(attempt=task.number, final_loss=10 - folder.run.config.train.steps / 100)
    ledger.record_end(task.folder, task.number, Ending(Outcome.COMPLETED))


def gone(removed):
    groups = {}
    for run_id, change in (removed or {}).items():
        groups.setdefault(change, []).append(run_id)
    return {change: len(runs) for change, runs in groups.items()}


def labels(root, where="in_study"):
    collect(root)
    with open_for_reading(root) as connection:
        rows = connection.execute(
            f"SELECT label, count(*) FROM runs WHERE {where} GROUP BY label ORDER BY label"
        )
        return dict(rows.fetchall())


def test_a_value_that_went_is_named_with_its_runs_and_no_group_counts_it(launch, root):
    assert launch(TWO) == {}
    assert launch(OTHER) == {"train.learning_rate=0.003": 2}
    assert labels(root) == {"learning_rate=0.001": 2, "learning_rate=0.01": 2}
    assert labels(root, "NOT in_study") == {"learning_rate=0.003": 2}


def test_groups_are_named_as_if_removed_cells_had_never_been(launch, root):
    launch("matrix: {seed: [0, 1]}\n")
    assert launch("matrix: {seed: [0, 1]}\nrules: [{where: {seed: [0, 1]}, set: {train.steps: 8}}]\n") == {
        "train.steps=6": 2
    }
    assert labels(root) == {"auto": 2}
    (label,) = labels(root, "NOT in_study")
    assert label.startswith("auto #")


def test_an_edit_that_is_taken_back_takes_its_runs_back(launch, root):
    launch(TWO)
    launch(OTHER)
    assert launch(TWO) == {"train.learning_rate=0.01": 2}
    assert labels(root) == {"learning_rate=0.001": 2, "learning_rate=0.003": 2}


SCALES = TWO + "scales: {laptop: {set: {train.steps: 4}}}\n"


@pytest.mark.parametrize(
    "part",
    [
        {"only": ["train.learning_rate=1e-3"]},
        {"only": ["seed=1"]},
        {"scale": "laptop"},
        {"sets": ["train.steps=3"]},
    ],
    ids=str,
)
def test_a_launch_of_a_part_evicts_nothing(launch, root, part):
    launch(SCALES)
    assert launch(SCALES, **part) == launch(SCALES) == {}
    assert labels(root, "NOT in_study") == {}


@pytest.mark.parametrize(
    "part", [{"only": ["seed=1"]}, {"scale": "laptop"}, {"sets": ["train.steps=3"]}], ids=str
)
def test_a_launch_of_a_part_says_what_the_whole_study_lost(launch, part):
    launch(SCALES)
    assert launch(SCALES.replace("3e-3", "1e-2"), **part) == {"train.learning_rate=0.003": 2}


def test_a_run_that_set_made_belongs_as_long_as_the_study_gives_it_with_that_set(launch):
    launch(TWO, sets=["train.steps=3", "train.dtype=bfloat16"], only=["seed=0"])
    assert launch(TWO) == {}
    assert launch(OTHER) == {"train.learning_rate=0.003": 3}


def test_a_run_of_before_an_edit_belongs_again_if_set_asks_for_it(launch):
    launch("matrix: {seed: [0]}\n")
    longer = "matrix: {seed: [0]}\nscales: {full: {set: {train.steps: 8}}}\n"
    assert launch(longer) == {"train.steps=6": 1}
    assert launch(longer, sets=["train.steps=6"]) == launch(longer) == {}


def test_a_scale_that_went_takes_its_runs_with_it_and_one_that_was_renamed_does_not(launch):
    launch(SCALES)
    launch(SCALES, "laptop")
    assert launch(SCALES.replace("laptop", "small")) == {}
    assert launch(TWO) == {"scale=laptop": 4}


def test_seeds_that_were_added_remove_nothing_and_those_that_went_are_named(launch):
    launch("matrix: {seed: [0, 1]}\n")
    assert launch("matrix: {seed: [0, 1, 2]}\n") == {}
    assert launch("matrix: {seed: [2]}\n") == {"seed=0": 1, "seed=1": 1}


def test_a_combination_that_is_excluded_is_named_by_its_factors(launch):
    launch(TWO)
    without = TWO + "exclude: [{train.learning_rate: 3e-3, seed: 1}]\n"
    assert launch(without) == {"train.learning_rate=0.003, seed=1": 1}


def test_fewer_repeats_remove_the_others(launch):
    launch("matrix: {seed: [0]}\nrepeats: 3\n")
    assert launch("matrix: {seed: [0]}\nrepeats: 1\n") == {"repeat=2": 1, "repeat=3": 1}


def test_repeats_that_until_added_stay_when_it_ends_or_goes(launch, root):
    study = "matrix: {attention: [auto, tiled], seed: [0]}\nbaseline: {attention: auto}\n"
    until = "until: {tokens_per_second: 1%%, at_most: %d}\n"
    launch(study + "repeats: 4\n" + until % 6)
    assert launch(study + until % 3) == launch(study + until % 3) == launch(study) == launch(study) == {}


def test_a_retry_and_a_rehearsal_change_nothing_of_this(launch, study, root):
    launch(TWO)
    launch(OTHER)
    record = study_record(root, "tiny")
    retry = planned_again(root, states(root), read_cluster("local"))
    assert retry.record is None and rehearsal(retry).record is None
    write_runs(retry)
    assert study_record(root, "tiny") == record


def test_runs_that_are_done_get_other_names_where_no_cluster_is(launch, study, root, monkeypatch):
    launch(TWO)
    monkeypatch.setenv("PATH", "/nowhere")
    path = study(
        TWO + "rules: [{where: {train.learning_rate: [1e-3, 3e-3]}, label: 'at {train.learning_rate}'}]\n"
    )
    parsed = read_study(path)
    planned = plan(parsed, expand(parsed), "full", read_cluster("slurm"), root)
    assert not planned.left and submit(planned, wait=False) == []
    assert labels(root) == {"at 0.001": 2, "at 0.003": 2}


def test_a_launch_that_finds_nothing_to_do_records_what_the_study_has(launch, root):
    launch(TWO)
    assert launch(RATES.format("1e-3")) == {"train.learning_rate=0.003": 2}
    assert set(labels(root)) == {"auto"}


def test_a_scale_that_cannot_be_expanded_removes_none_of_its_runs_and_says_so(launch, caplog):
    launch(SCALES)
    launch(SCALES, "laptop")
    broken = SCALES.replace("train.steps: 4", "train.steps: 4, train.batch_size: -1").replace("3e-3", "1e-2")
    assert launch(broken) == {"train.learning_rate=0.003": 2}
    assert "cannot tell which runs of scale laptop the study still has" in caplog.text


def test_a_report_leaves_them_out_says_so_and_shows_them_if_asked(launch, root, tmp_path):
    launch(TWO)
    launch(OTHER)
    collect(root)
    page = build_report(root, "tiny", tmp_path / "page").read_text()
    assert (
        "2 runs that the study no longer has are left out (2 with train.learning_rate=0.003); runner report"
        in page
    )
    assert "runner report tiny --removed" in page
    runs = (tmp_path / "page" / "data" / "runs.csv").read_text()
    assert "learning_rate=0.003" not in runs and "learning_rate=0.01" in runs
    complete = build_report(root, "tiny", tmp_path / "whole", removed=True).read_text()
    assert "2 runs of these are no longer in the study (2 with train.learning_rate=0.003)." in complete
    for report in ("page", "whole"):
        answer = audit(tmp_path / report, root)
        assert (answer.findings, answer.numbers > 100) == ([], True)


def test_a_report_counts_values_and_not_the_groups_that_set_made_of_them(launch, root, tmp_path):
    launch(TWO)
    launch(TWO, sets=["train.steps=3"])
    collect(root)
    page = build_report(root, "tiny", tmp_path / "page").read_text()
    assert "in 4 groups with 2 values of train.learning_rate, which differ in other settings too" in page
    assert set(labels(root)) == {
        f"learning_rate={rate}, steps={steps}" for rate in (0.001, 0.003) for steps in (3, 6)
    }


@pytest.mark.parametrize(
    ("edited", "sentence"),
    [
        (TWO, "none: the number of runs was fixed in advance"),
        (
            OTHER,
            "not fixed in advance: 2 runs added after the first result and 2 runs removed from the study",
        ),
        (TWO.replace("[0, 1]", "[0, 1, 2]"), "not fixed in advance: 2 runs added after the first result"),
        (RATES.format("1e-3"), "not fixed in advance: 2 runs removed from the study"),
    ],
)
def test_a_report_says_whether_the_number_of_runs_was_fixed_in_advance(
    launch, root, tmp_path, edited, sentence
):
    launch(TWO)
    launch(edited)
    collect(root)
    assert sentence in build_report(root, "tiny", tmp_path / "page").read_text()


def test_a_study_of_which_nothing_is_left_has_no_report_and_says_how_to_get_one(cli, launch, study, root):
    launch("matrix: {seed: [0]}\n")
    write = root / "tiny" / ".study.json"
    record = json.loads(write.read_text())
    record["removed"] = {state.brief.run_id: "seed=0" for state in states(root)}
    write.write_text(json.dumps(record))
    assert cli("report", "tiny").err.endswith(
        "study tiny no longer has any of its 1 run: launch it, or show them with --removed\n"
    )


def test_launch_and_status_name_them(cli, launch, study, root):
    launch(TWO)
    path = study(OTHER)
    message = "2 runs on disk no longer belong to study tiny: 2 with train.learning_rate=0.003 (such as tiny/"
    assert message in cli("launch", path, "--dry-run").err
    assert message not in cli("status").err, "a dry run changes nothing"
    launch(OTHER)
    status = cli("status")
    assert message in status.err and "4 runs: 4 completed; 2 removed: 2 completed" in status.err
    assert status.out.count("completed (removed from the study)") == 2
    rows = json.loads(cli("status", "--json").out)
    assert [row["in_study"] for row in rows].count(False) == 2
    run = next(row["run_id"] for row in rows if not row["in_study"])
    assert json.loads(cli("explain", run, "--json").out)["removed"] == "train.learning_rate=0.003"


def test_a_launch_says_how_many_runs_set_makes_beside_the_files(cli, launch, study):
    path, message = study(TWO), "--set makes 4 runs beside those of the study's file"
    assert message in cli("launch", path, "--dry-run", "--set", "train.steps=3").err
    assert message not in cli("launch", path, "--dry-run", "--set", "train.steps=6").err, "as the file says"


def test_a_named_query_answers_as_the_report_does(runner, launch):
    launch(TWO)
    launch(OTHER)
    runner("collect", rc=0)
    table = runner("sql", "@runs", "--study", "tiny", "--format", "csv", rc=0).stdout
    assert "learning_rate=0.01," in table and "learning_rate=0.003," not in table


def test_compare_leaves_them_out_unless_asked(cli, launch, root, tmp_path):
    launch(TWO)
    shutil.copytree(root, tmp_path / "before")
    launch(OTHER)
    message = "tiny: without 2 runs that the study no longer has; --removed includes them"
    assert message in cli("compare", "before/tiny", "tiny").err
    assert message not in cli("compare", "before/tiny", "tiny", "--removed").err
    for source, values in (
        (StudySource("tiny", root, "tiny"), {0.001, 0.01}),
        (StudySource("tiny", root, "tiny", removed=True), {0.001, 0.003, 0.01}),
    ):
        runs, _ = read(source, StudySource("before", tmp_path / "before", "tiny"))
        assert {run["factors"]["train.learning_rate"] for run in runs.runs} == values


def test_an_archive_takes_along_what_the_study_no_longer_has(cli, launch, root, tmp_path):
    launch(TWO)
    launch(OTHER)
    assert cli("export", "tiny").code == 0
    assert cli("collect", "exports/tiny/tiny.tar.gz", root=tmp_path / "other").code == 0
    assert labels(tmp_path / "other") == labels(root)


def test_another_file_of_the_same_name_is_refused_and_both_are_named(launch, study, root, tmp_path):
    launch(TWO)
    first = tmp_path / "tiny.yaml"
    other = tmp_path / "elsewhere" / "tiny.yaml"
    other.parent.mkdir()
    (other.parent / "text.parquet").symlink_to((tmp_path / "text.parquet").resolve())
    other.write_text(first.read_text().replace("A tiny study", "Another"))
    with pytest.raises(InvalidFile) as error:
        launch("", path=other)
    message = str(error.value)
    assert message.startswith(f"{other}:1:1: ") and str(first) in message and "another `name:`" in message
    other.write_text("name: mine\n" + other.read_text())
    assert launch("", path=other) == {}


def test_a_file_goes_on_with_its_study_if_it_was_moved_or_says_the_same(launch, study, root, tmp_path):
    launch(TWO)
    first = tmp_path / "tiny.yaml"
    other = tmp_path / "elsewhere" / "tiny.yaml"
    other.parent.mkdir()
    (other.parent / "text.parquet").symlink_to((tmp_path / "text.parquet").resolve())
    other.write_text(first.read_text())
    assert launch("", path=other) == {}
    other.write_text(other.read_text().replace("3e-3", "1e-2"))
    assert launch("", path=other) == {"train.learning_rate=0.003": 2}, "the copy is the study's file by now"
    with pytest.raises(InvalidFile, match="elsewhere/tiny.yaml"):
        launch("", path=first)
    other.unlink()
    assert launch("", path=first) == {"train.learning_rate=0.01": 2}
    first.rename(tmp_path / "renamed.yaml")
    (tmp_path / "renamed.yaml").write_text("name: tiny\n" + (tmp_path / "renamed.yaml").read_text())
    assert launch("", path=tmp_path / "renamed.yaml") == {"train.learning_rate=0.01": 2}
    retry = planned_again(root, states(root), read_cluster("local"))
    assert retry.study.path == tmp_path / "renamed.yaml", "a retry finds the file where it is now"


def test_a_name_that_its_file_has_given_up_can_be_taken_by_another(launch, study, root, tmp_path):
    launch("name: mine\n" + TWO)
    (tmp_path / "other.yaml").write_text((tmp_path / "tiny.yaml").read_text().replace("tiny study", "other"))
    study("name: yours\n" + TWO)
    assert launch("", path=tmp_path / "other.yaml") == {}


def test_runs_of_versions_without_such_a_record_keep_their_file(launch, study, root, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    launch(TWO)
    (root / "tiny" / ".study.json").unlink()
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "tiny.yaml").write_text((tmp_path / "tiny.yaml").read_text() + "repeats: 2\n")
    with pytest.raises(InvalidFile, match="is that of"):
        launch("", path=tmp_path / "sub" / "tiny.yaml")


LABEL = "rules: [{{where: {{train.learning_rate: 1e-3}}, label: {}}}]\n"


@pytest.mark.fault
def test_a_report_says_which_launch_renews_what_the_file_says_otherwise(launch, study, cli):
    def notices(extra, *targets):
        study(extra)
        answer = cli("report", *targets, "--out", "page", "--figures", "svg", "--no-records")
        assert answer.code == 0, answer.err
        return [line for line in answer.err.splitlines() if "changed since" in line]

    text = TWO + LABEL.format("slow") + "margins: {loss: 0.1}\n"
    launch(text)
    path = study(text)
    assert notices(text, "tiny") == notices(text + "repeats: 2\n", "tiny") == []
    renamed = text.replace("slow", "steady")
    (label,) = notices(renamed, "tiny")
    assert f"{path}: labels changed since the launch" in label
    assert f"launch {path} --profile local --scale full` renews that" in label
    assert notices(renamed, str(path)) == [label]
    (margin,) = notices(text.replace("0.1", "0.3"), "tiny")
    assert "margins changed since the launch, and the report judges by those of the launch" in margin
    launch(renamed)
    assert notices(renamed, "tiny") == []
