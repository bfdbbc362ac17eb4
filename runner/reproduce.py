"""The same code, configuration, data and seed again, and how what came out compares.

A repeat is a run of its own, in the study `STUDY.reproduced`, so that it never mixes with the results that
it checks. Its jobs start from the code snapshot of the run that it repeats, whatever became of the working
tree. Code of others, the GPU and the node are what they are now; the comparison says where they differ.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

from model.data import Source, fingerprint
from model.errors import UserError
from model.files import write_text
from model.record import RunFolder, RunRecord, now
from runner import ledger, provenance, snapshot, status
from runner.cluster import Cluster, read_cluster
from runner.comparison import Comparison, compare
from runner.console import say, table
from runner.ledger import RunState
from runner.lock import study_lock

SUFFIX = ".reproduced"
POLL_SECONDS = 2.0
LOCK_SECONDS = 60.0


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


def reproduce(
    root: Path,
    name: str,
    start: Callable[[Repeat], None],
    out: Path | None = None,
    profile: str | None = None,
) -> int:
    """Repeat a run, wait for its end, print the comparison, and give the exit code.

    A repeat that was begun and has not ended, because the command was interrupted, is gone on with.

    Args:
        root: the workspace of the run.
        name: the run's id, or the start of it.
        start: claims the repeat's next attempt, and starts it or hands it to a scheduler.
        out: another workspace for the repeat.
        profile: another profile than the run's.

    Raises:
        UserError: the run cannot be repeated; the text says why.
        SchedulerError: the scheduler refused.
    """
    repeat = prepare(root, name, out, profile)
    say(f"repeating {_title(repeat.original)} as {repeat.folder.path}")
    if repeat.state.phase == "planned":
        start(repeat)
    while _phase(repeat) != "ended":
        time.sleep(POLL_SECONDS)
    found = compare(repeat.original, repeat.state)
    show(found)
    return 0 if found.same_outcome else 1


def show(found: Comparison) -> None:
    """Print a comparison, and its sum on stderr."""
    table(["", "then", "now", ""], found.rows)
    say(found.verdict)


def prepare(root: Path, name: str, out: Path | None = None, profile: str | None = None) -> Repeat:
    """Plan the repeat of a run on disk, or give the one that is under way.

    Raises:
        UserError: the run has not ended, has no snapshot, or its data has changed.
    """
    original = status.find(root, name)
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
        status.reconciled(study.parent, study.name)  # a repeat that was lost has ended
    with study_lock(study, LOCK_SECONDS) as held:
        if not held:
            raise UserError(f"another command has been at work on {study.name} for {LOCK_SECONDS:.0f} s")
        folder = _under_way(study, original) or _plan(original, files, study, cluster.name)
    return Repeat(original, folder, study.parent, cluster)


def _under_way(study: Path, original: RunState) -> RunFolder | None:
    """A repeat of this run that was begun and has not ended."""
    for state in status.states(study.parent, study.name):
        if state.run.provenance.reproduces == _title(original) and state.phase != "ended":
            return state.folder
    return None


def _title(state: RunState) -> str:
    return f"{state.run.study}/{state.run.run_id}"


def _study_name(study: str) -> str:
    # A name has at most 100 characters; a repeat of a repeat stays where it is.
    return study if study.endswith(SUFFIX) else study[: 100 - len(SUFFIX)] + SUFFIX


def _phase(repeat: Repeat) -> str:
    status.reconciled(repeat.root, repeat.study)
    return repeat.state.phase


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
        say(f"the tokenizer {run.tokenizer} comes from the hub: whether it has changed is not known")


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
    origin["reproduces"] = _title(original)
    own = {
        "run_id": _hash(f"{_title(original)} again, {number}"),
        "group": _hash(f"{original.run.group} again"),
        "study": study,
        "profile": profile,
        "created_at": now().isoformat(),
    }
    return record | own


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:12]
