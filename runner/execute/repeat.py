"""The same code, configuration, data and seed again, and how what came out compares.

A repeat is a run of its own, in the study `STUDY.reproduced`, so that it never mixes with the results that
it checks. Its jobs start from the code snapshot of the run that it repeats, whatever became of the working
tree. Code of others, the GPU and the node are what they are now; the comparison says where they differ.
"""

from __future__ import annotations

import hashlib
import json
import logging
import time
from dataclasses import dataclass, replace
from itertools import count
from pathlib import Path
from typing import Any

from model.data import Source, fingerprint
from model.disk.files import write_text
from model.disk.folder import RunFolder
from model.disk.record import RunRecord, now
from model.errors import UserError
from runner.execute import local
from runner.execute.reconcile import reconciled
from runner.execute.slurm import submit as slurm
from runner.plan.write import next_task
from runner.spec.profile import Cluster, read_cluster
from runner.state import ledger
from runner.state.code import provenance, snapshot
from runner.state.ledger import RunState
from runner.state.lock import study_lock
from runner.state.runs import find, states
from runner.state.tasks import jobs_folder

SUFFIX = ".reproduced"
POLL_SECONDS = 2.0
LOCK_SECONDS = 60.0
log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Repeat:
    """A run that repeats another one.

    Attributes:
        root: the workspace of the repeat.
        cluster: how it is started, with the limits of the run that it repeats.
    """

    original: RunState
    folder: RunFolder
    root: Path
    cluster: Cluster

    @property
    def study(self) -> str:
        """The study that it is kept under."""
        return self.folder.path.parent.name

    @property
    def state(self) -> RunState:
        """Where it stands now."""
        return ledger.state(self.folder)


def start(repeat: Repeat, watcher: local.Watcher) -> None:
    """Start the next attempt of a repeat: to its end here, or into Slurm's queue.

    Raises:
        SchedulerError: the scheduler refused.
    """
    run, profile = repeat.state.run, repeat.cluster.profile
    expected = repeat.original.outcome or run.expected_outcome
    task = replace(next_task(repeat.folder, run), expected=expected)
    if profile.executor == "local":
        local.run_queue([task], profile, watcher)
    else:
        slurm.submit([task], profile, jobs_folder(repeat.folder.path.parent), repeat.study)


def wait_for(repeat: Repeat) -> RunState:
    """Wait until a repeat has ended, and give how."""
    while True:
        reconciled(repeat.root, repeat.study)
        if (state := repeat.state).phase == "ended":
            return state
        time.sleep(POLL_SECONDS)


def prepare(root: Path, name: str, out: Path | None = None, profile: str | None = None) -> Repeat:
    """Plan the repeat of a run on disk, or return the one that was begun and has not ended.

    Args:
        root: the workspace of the run.
        name: the run's id, or the start of it.
        out: another workspace for the repeat.
        profile: another profile than the run's.

    Raises:
        UserError: the run has not ended, has no snapshot, or its data has changed.
    """
    original = find(root, name)
    run = original.run
    if original.phase != "ended":
        raise UserError(
            f"run {run.run_id} has not ended ({original.phase}): there is nothing to reproduce yet"
        )
    files = _code(original)
    _check_data(run)
    cluster = _cluster(run, profile)
    study = (out or root) / _study_name(run.study)
    if study.is_dir():
        reconciled(study.parent, study.name)  # a repeat that was lost has ended
    with study_lock(study, LOCK_SECONDS) as held:
        if not held:
            raise UserError(f"another command has been at work on {study.name} for {LOCK_SECONDS:.0f} s")
        folder = _under_way(study, original) or _plan(original, files, study, cluster.name)
    return Repeat(original, folder, study.parent, cluster)


def _under_way(study: Path, original: RunState) -> RunFolder | None:
    """A repeat of this run that was begun and has not ended."""
    for state in states(study.parent, study.name):
        if state.run.provenance.reproduces == title(original) and state.phase != "ended":
            return state.folder
    return None


def title(state: RunState) -> str:
    """`STUDY/RUN_ID`."""
    return f"{state.run.study}/{state.run.run_id}"


def _study_name(study: str) -> str:
    # A name has at most 100 characters; a repeat of a repeat stays where it is.
    return study if study.endswith(SUFFIX) else study[: 100 - len(SUFFIX)] + SUFFIX


def _code(original: RunState) -> dict[str, bytes]:
    run = original.run
    if run.provenance.code is None:
        commit = run.provenance.git_sha or "its code"
        raise UserError(
            f"run {run.run_id} has no code snapshot: it was planned before there were any; "
            f"check out {commit} and launch {run.study_file} with another --root"
        )
    return snapshot.verify(snapshot.path_of(original.folder.path.parent, run.provenance.code))


def _check_data(run: RunRecord) -> None:
    cannot = f"run {run.run_id} cannot be reproduced"
    try:
        found = fingerprint(Source(Path(run.data_file), run.tokenizer), run.config.data.text_column)
    except UserError as error:
        raise UserError(f"{cannot}: {error}") from error
    if found != run.data_fingerprint:
        raise UserError(f"{cannot}: {run.data_file} or the tokenizer is not what it was when it was planned")
    if run.tokenizer != "bytes" and not Path(run.tokenizer).exists():
        log.warning("the tokenizer %s comes from the hub: whether it has changed is not known", run.tokenizer)


def _cluster(run: RunRecord, profile: str | None) -> Cluster:
    """The run's profile as it is today; the limits are the run's own."""
    try:
        return read_cluster(profile or run.profile)
    except UserError as error:
        raise UserError(f"{error}; run {run.run_id} was launched with it: name one with --profile") from error


def _plan(original: RunState, files: dict[str, bytes], study: Path, profile: str) -> RunFolder:
    """Write all that the repeat needs, its run.json last. The study's lock is held."""
    here = provenance.provenance(study).model_dump()
    try:
        snapshot.place(files, study)
        provenance.keep_for_repeat(original.folder, study)
        for number in count(1):
            record = _record(original, study.name, number, profile, here)
            folder = study / record["run_id"]
            if not (folder / "run.json").exists():
                folder.mkdir(exist_ok=True)
                write_text(folder / "run.json", json.dumps(record, indent=1) + "\n")
                break
    except OSError as error:
        raise UserError(f"{study}: {error.strerror}; choose another place with --out") from error
    return RunFolder(folder)


def _record(
    original: RunState, study: str, number: int, profile: str, here: dict[str, Any]
) -> dict[str, Any]:
    """The original's record as it was written, for the code that wrote it: no key is new."""
    record: dict[str, Any] = json.loads((original.folder.path / "run.json").read_bytes())
    origin = record["provenance"]
    for key in ("command", "python", "user", "host", "environment", "packages"):
        origin[key] = here[key]
    origin["reproduces"] = title(original)
    own = {
        "run_id": _hash(f"{title(original)} again, {number}"),
        "group": _hash(f"{original.run.group} again"),
        "study": study,
        "profile": profile,
        "created_at": now().isoformat(),
    }
    return record | own


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:12]
