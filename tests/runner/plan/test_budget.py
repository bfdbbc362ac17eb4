"""A budget is reserved before anything is submitted, and what exceeds it is refused with the numbers."""

import threading
from datetime import timedelta
from types import SimpleNamespace

import pytest

from model.record.config import DataConfig, RunConfig, TrainConfig
from model.record.files import append
from model.record.outcome import Outcome
from model.record.records import LedgerEvent, now
from runner.inputs.document import InvalidFile, Mark, parse
from runner.inputs.profile import Budget, Cluster, Profile
from runner.inputs.validation import validated
from runner.plan import budget, cost
from runner.plan.budget import NAME, Reservation, SpendingLimit, measure, reserve
from runner.plan.cost import History, estimate
from tests.analysis.fabricate import Folder, completed, plan


def profile(**keys):
    return Profile.model_validate({"executor": "slurm", "gpus": 1, "slurm": {}} | keys)


MARK = Mark("study.yaml", 7, 9)


def limit(hours=10.0, unit="gpu_hours", **whose):
    return SpendingLimit(unit, hours, MARK, **(whose or {"study": "backends"}))


def asks(*run_ids, hours=4.0, **keys):
    """An estimate of so many hours a run."""
    runs = [plan(run_id) for run_id in run_ids]
    past = cost.PastRun(runs[0].config, "alps", Outcome.COMPLETED, None, 0.1, hours * 3600, 100, 1)
    return estimate(runs, profile(**keys), History((past,)))


def claimed(root, run_id, **changes):
    """A run whose attempt was claimed just now."""
    folder = Folder(root, plan(run_id, **changes))
    (folder.path / "attempt-1").mkdir()
    append(folder.path / "ledger.jsonl", LedgerEvent(time=now(), event="claimed", attempt=1))
    return folder


def by_a_dead_launcher(root, planned):
    """Reserve in a process that is gone afterwards."""
    reserve(root, "backends", [limit(1e6)], planned)
    path = root / "backends" / NAME
    (line,) = path.read_text().splitlines()
    dead = Reservation.model_validate_json(line).model_copy(update={"pid_started": 1.0})
    path.write_text(dead.model_dump_json() + "\n")


@pytest.mark.refused
def test_what_is_left_can_be_spent_and_no_more(tmp_path):
    completed(tmp_path, "done").end(seconds=3 * 3600)
    reserve(tmp_path, "backends", [limit()], asks("a"))
    with pytest.raises(InvalidFile) as error:
        reserve(tmp_path, "backends", [limit()], asks("b"))
    assert str(error.value) == (
        "study.yaml:7:9: a budget of 10 GPU-hours: this launch needs 4 (1 run from past runs of the same "
        "configuration); 3 spent, 4 reserved by 1 run in flight, 3 left; "
        "launch fewer runs with --only, or raise the budget"
    ), "the first launch has yet to claim, and lives"
    assert len((tmp_path / "backends" / NAME).read_text().splitlines()) == 1, "nothing was written"


def test_a_reservation_ends_with_its_attempt(tmp_path):
    by_a_dead_launcher(tmp_path, asks("a"))
    assert measure(tmp_path, limit()).reserved == 0, "the launcher died before it claimed anything"
    folder = claimed(tmp_path, "a")
    assert measure(tmp_path, limit()).reserved == 4, "in flight"
    (folder.path / "attempt-1").rmdir()
    folder.start()
    folder.end(seconds=3600)
    usage = measure(tmp_path, limit())
    assert (usage.spent, usage.reserved, usage.in_flight) == (1, 0, 0)


def test_an_attempt_that_was_cancelled_before_it_started_cost_nothing(tmp_path):
    by_a_dead_launcher(tmp_path, asks("a"))
    folder = claimed(tmp_path, "a")
    folder.event("ended", outcome="cancelled", after=10**9)
    usage = measure(tmp_path, limit())
    assert (usage.spent, usage.reserved) == (0, 0)


def test_a_released_claim_reserves_nothing(tmp_path):
    by_a_dead_launcher(tmp_path, asks("a"))
    claimed(tmp_path, "a").event("released")
    assert measure(tmp_path, limit()).reserved == 0


def test_a_killed_attempt_costs_what_it_used_until_it_was_noticed(tmp_path):
    folder = Folder(tmp_path, plan("a"))
    folder.start(gpus=2)
    folder.event("ended", outcome="node_failed", after=1800)
    assert measure(tmp_path, limit()).spent == 1.0


def test_a_run_that_takes_longer_than_its_reservation_counts_with_what_it_used(tmp_path):
    by_a_dead_launcher(tmp_path, asks("a"))
    Folder(tmp_path, plan("a")).start(started_at=now() - timedelta(hours=6))
    assert measure(tmp_path, limit()).reserved == pytest.approx(6, abs=0.01)


def test_a_run_in_flight_that_was_launched_without_a_budget_is_said(tmp_path):
    Folder(tmp_path, plan("a")).start(started_at=now() - timedelta(hours=8))
    with pytest.raises(
        InvalidFile, match="1 in flight without a reservation: only their usage so far is counted"
    ):
        reserve(tmp_path, "backends", [limit()], asks("b"))


@pytest.mark.fault
def test_a_folder_that_cannot_be_read_is_said(tmp_path):
    completed(tmp_path, "done").end(seconds=9 * 3600)
    (Folder(tmp_path, plan("torn")).start() / "result.json").write_text('{"torn')
    with pytest.raises(InvalidFile, match="1 run folder cannot be read: not counted"):
        reserve(tmp_path, "backends", [limit()], asks("b"))


@pytest.mark.refused
def test_an_unknown_cost_is_refused_where_there_is_a_budget(tmp_path):
    unknown = estimate([plan("a", time_limit_seconds=None)], profile(), History())
    with pytest.raises(InvalidFile, match=r"study.yaml:7:9: .* unknown .*give the profile a time_limit"):
        reserve(tmp_path, "backends", [limit()], unknown)
    reserve(tmp_path, "backends", [], unknown)
    assert not (tmp_path / "backends" / NAME).exists(), "no budget, nothing to reserve"


def test_a_profiles_budget_counts_the_runs_of_all_studies_that_used_it(tmp_path):
    completed(tmp_path, "a", study="one").end(seconds=3600)
    completed(tmp_path, "b", study="two").end(seconds=3600)
    completed(tmp_path, "c", study="two", profile="h100").end(seconds=3600)
    assert measure(tmp_path, limit(profile="alps")).spent == 2
    assert measure(tmp_path, limit(study="two")).spent == 2


def test_a_budget_leaves_out_the_runs_of_another_profile_of_its_name(tmp_path):
    own, other, copy = (tmp_path / name / "alps.yaml" for name in ("mine", "other", "copy"))
    for path, text in ((own, "gpus: 1\n"), (other, "gpus: 4\n"), (copy, "gpus: 1\n")):
        path.parent.mkdir()
        path.write_text(text)
    for number, file in enumerate((own, other, copy, tmp_path / "moved.yaml", None)):
        completed(tmp_path, f"r{number}", profile_file=file and str(file)).end(seconds=3600)
    count = limit(profile="alps", profile_file=own)
    assert measure(tmp_path, count).spent == 4, "all but those of the other file"
    assert measure(tmp_path, limit(profile="alps", profile_file=other)).spent == 3


def test_a_reservation_remembers_the_profiles_file(tmp_path):
    own, other = tmp_path / "mine.yaml", tmp_path / "other.yaml"
    own.write_text("gpus: 1\n")
    other.write_text("gpus: 4\n")
    runs = [plan("a", profile_file=str(own))]
    reserve(tmp_path, "backends", [limit()], estimate(runs, profile(), History()))
    counts = [limit(profile="alps", profile_file=file) for file in (own, other)]
    assert [measure(tmp_path, count).reserved for count in counts] == [1, 0]


def test_a_node_hour_counts_once_for_all_runs_that_share_the_node(tmp_path):
    exclusive = {"slurm": {"exclusive": True}, "gpus_per_node": 4, "max_parallel": 4}
    for run_id, seconds in (("a", 3600), ("b", 1800)):
        folder = Folder(tmp_path, plan(run_id))
        folder.start(slurm={"SLURM_JOB_ID": "7"})
        folder.end(seconds=seconds)
    nodes = limit(2.0, "node_hours")
    assert measure(tmp_path, nodes).spent == 1
    with pytest.raises(InvalidFile, match="needs 4 .*1 spent, 0 reserved by 0 runs in flight, 1 left"):
        reserve(tmp_path, "backends", [nodes], asks("c", "d", **exclusive))
    reserve(tmp_path, "backends", [nodes], asks("c", "d", hours=1.0, **exclusive))
    assert measure(tmp_path, nodes).reserved == 1
    with pytest.raises(InvalidFile, match="this profile shares nodes"):
        reserve(tmp_path, "backends", [nodes], asks("e"))


def test_every_gpu_and_every_node_of_a_run_is_reserved_and_spent(tmp_path):
    """Eight processes on two nodes."""
    config = RunConfig(data=DataConfig(path="x"), train=TrainConfig(batch_size=8), parallel={"shard": 8})
    runs = [plan(name, config=config, time_limit_seconds=3600) for name in ("a", "b")]
    exclusive = profile(slurm={"exclusive": True}, gpus_per_node=4, max_parallel=4)
    limits = [limit(30.0), limit(5.0, "node_hours")]
    reserve(tmp_path, "backends", limits, estimate(runs, exclusive, History()))
    assert [measure(tmp_path, spending).reserved for spending in limits] == [16, 4]
    for run in runs:
        (folder := Folder(tmp_path, run)).start(gpus=8, nodes=2, slurm={"SLURM_JOB_ID": run.run_id})
        folder.end(seconds=1800)
    assert [measure(tmp_path, spending).spent for spending in limits] == [8, 2]


@pytest.mark.fault
def test_launches_at_once_cannot_both_have_the_last_of_it(tmp_path):
    """Four threads ask for 4 of 10 hours: two get it. Each thread opens the lock for itself, as a process does."""
    outcomes = []

    def ask(name):
        try:
            reserve(tmp_path, "backends", [limit()], asks(name))
            outcomes.append(True)
        except InvalidFile:
            outcomes.append(False)

    threads = [threading.Thread(target=ask, args=[name]) for name in "abcd"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(outcomes) == [False, False, True, True]


@pytest.mark.fault
def test_a_launcher_on_another_machine_counts_for_a_while(tmp_path):
    by_a_dead_launcher(tmp_path, asks("a"))
    Folder(tmp_path, plan("a"))
    path = tmp_path / "backends" / NAME
    line = Reservation.model_validate_json(path.read_text())
    path.write_text(line.model_copy(update={"host": "login2"}).model_dump_json() + "\n")
    assert measure(tmp_path, limit()).reserved == 4
    fields = {"host": "login2", "time": now() - timedelta(hours=1)}
    path.write_text(line.model_copy(update=fields).model_dump_json() + "\n")
    assert measure(tmp_path, limit()).reserved == 0


def test_limits_have_the_place_where_they_are_written():
    document = parse("executor: slurm\nslurm: {}\nbudget:\n  gpu_hours: 100\n  node_hours: 5\n", "c.yaml")
    cluster = Cluster("c", validated(document, Profile), document)
    assert [
        (spending.unit, spending.hours, str(spending.mark)) for spending in budget.profile_limits(cluster)
    ] == [
        ("gpu_hours", 100, "c.yaml:4:3"),
        ("node_hours", 5, "c.yaml:5:3"),
    ]
    study = SimpleNamespace(name="s", file=SimpleNamespace(budget=Budget(gpu_hours=1)), document=document)
    of_both = budget.limits_of(SimpleNamespace(study=study, cluster=cluster))
    assert [(spending.study, spending.profile) for spending in of_both] == [("s", None), *[(None, "c")] * 2]
    study.file.budget = None
    assert budget.limits_of(SimpleNamespace(study=study, cluster=cluster)) == budget.profile_limits(cluster)


@pytest.mark.refused
@pytest.mark.parametrize(
    ("text", "message"),
    [("budget: {}", "gpu_hours, node_hours or both"), ("budget: {gpu_hours: 0}", "greater than 0"), ("budget: {hours: 1}", "valid: gpu_hours")],
)  # fmt: skip
def test_a_wrong_budget_is_reported_at_its_place(text, message):
    with pytest.raises(InvalidFile, match=f"c.yaml:3:[19].*{message}"):
        validated(parse(f"executor: slurm\nslurm: {{}}\n{text}\n", "c.yaml"), Profile)
