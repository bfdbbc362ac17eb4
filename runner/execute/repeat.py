"""Repeats a run with the same code, configuration, data and seed.

A repeat is a separate run in the study `STUDY.reproduced`, so it never mixes with the results that it checks.
Its jobs start from the original run's code snapshot, whatever the working tree looks like now. Other
packages, the GPU and the node are today's; the comparison shows where they differ.
"""

from __future__ import annotations

import json
import logging
import time
from dataclasses import dataclass, replace
from itertools import count
from pathlib import Path
from typing import Any

from model.record.errors import UserError
from model.record.files import write_text
from model.record.folder import RunFolder
from model.record.records import now
from runner.execute import local
from runner.execute.launch import warn_of_risks
from runner.execute.queue import turn
from runner.execute.reconcile import RunWatch, reconciled
from runner.execute.slurm import submit as slurm
from runner.execute.wait import wait_until_profiled
from runner.inputs.profile import Cluster, read_cluster
from runner.plan.plan import cluster_of, derived_id, next_attempt
from runner.state import guard, ledger
from runner.state.attempts import jobs_folder
from runner.state.code import provenance, snapshot
from runner.state.filesystem import locked, not_writable, require_writable
from runner.state.ledger import RunState
from runner.state.runs import find, name_of, states

SUFFIX = ".reproduced"
POLL_SECONDS = 2.0
log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Repeat:
    """A run that repeats another one.

    Attributes:
        root: the workspace of the repeat.
        cluster: the profile that starts it; the limits are the original run's.
    """

    original: RunState
    folder: RunFolder
    root: Path
    cluster: Cluster

    @property
    def study(self) -> str:
        """Name of the repeat's study."""
        return self.folder.path.parent.name

    @property
    def state(self) -> RunState:
        """The repeat's current status, read from disk."""
        return ledger.state(self.folder)


def start(repeat: Repeat, watcher: local.Watcher) -> None:
    """Start the next attempt of a repeat: run it to its end here, or submit it to Slurm.

    Raises:
        SchedulerError: Slurm refused.
    """
    state, profile = repeat.state, repeat.cluster.profile
    run = state.run
    warn_of_risks(repeat.folder.path.parent, repeat.cluster)
    expected = (repeat.original.outcome,) if repeat.original.outcome else run.expected
    attempt = replace(next_attempt(repeat.folder, run, state), expected=expected)
    if profile.executor == "local":
        with turn(repeat.study, repeat.root):
            local.run_queue([attempt], repeat.cluster, watcher)
    else:
        slurm.submit([attempt], profile, jobs_folder(repeat.folder.path.parent), repeat.study)


def wait_for(repeat: Repeat) -> RunState:
    """Wait until a repeat has ended and, if it completed, been profiled; returns its final status."""
    began, watch = now(), RunWatch(repeat.root, repeat.study)
    while True:
        watch.look()
        if (state := repeat.state).phase == "ended":
            wait_until_profiled([state], began)
            return state
        time.sleep(POLL_SECONDS)


def prepare(root: Path, name: str, out: Path | None = None, profile: str | None = None) -> Repeat:
    """Plan a repeat of a run and write it to disk, or return an earlier repeat that has not ended.

    Args:
        root: the workspace of the run.
        name: the run's id or STUDY/ID, or a unique prefix of it.
        out: a different workspace for the repeat.
        profile: a profile to use instead of the run's.

    Raises:
        UserError: the run has not ended, has no snapshot, or its data has changed; or the repeat cannot be
            written.
    """
    original = find(root, name)
    run = original.run
    if original.phase != "ended":
        raise UserError(f"{name_of(original)} has not ended ({original.phase}): nothing to reproduce yet")
    require_writable(study := (out or root) / study_of_repeats(run.study), "--out")
    origin = original.folder.path.parent
    if run.provenance.code is None:
        commit = run.provenance.git_sha or "its code"
        raise UserError(
            f"{name_of(original)} has no code snapshot: it was planned by a version without them; "
            f"check out {commit} and launch {run.study_file} with another --root"
        )
    if (owner := guard.belongs_to_others(origin)) and run.provenance.code != snapshot.current():
        raise UserError(
            f"{name_of(original)} has other code than this, from {owner}, which would run as you: "
            f"if you trust it, copy {origin} to a root of yours and repeat the run there"
        )
    files = snapshot.read_trusted(origin, run.provenance.code)
    if source := run.source:
        cannot = f"{name_of(original)} cannot be reproduced"
        try:
            same = source.checked(run.config.text.text_column).fingerprint() == run.data_fingerprint
        except UserError as error:
            raise UserError(f"{cannot}: {error}") from error
        if not same:
            raise UserError(f"{cannot}: {run.data_file} or the tokenizer has changed since it was planned")
        if run.data_content is None and source.tokenizer != "bytes" and not Path(source.tokenizer).exists():
            log.warning("the tokenizer %s comes from the hub: it may have changed", run.tokenizer)
    cluster = read_cluster(profile) if profile else cluster_of(run)
    if study.is_dir():
        reconciled(study.parent, study.name)  # notices a repeat that was lost
    with locked(study):
        under_way = (
            state.folder
            for state in states(study.parent, study.name)
            if state.run.provenance.reproduces == name_of(original) and state.phase != "ended"
        )
        folder = next(under_way, None) or _plan(original, files, study, cluster)
    return Repeat(original, folder, study.parent, cluster)


def study_of_repeats(study: str) -> str:
    """The study that repeats of a study's runs go to; repeats of a repeat stay in the same one."""
    return study if study.endswith(SUFFIX) else study + SUFFIX


def _plan(original: RunState, files: dict[str, bytes], study: Path, cluster: Cluster) -> RunFolder:
    """Write everything the repeat needs, run.json last. The caller holds the study's lock."""
    # The original's record with the repeat's values; no new keys, because the original's code reads it.
    record: dict[str, Any] = json.loads((original.folder.path / "run.json").read_bytes())
    here, origin = provenance.provenance(study).model_dump(), record["provenance"]
    for key in ("command", "python", "user", "host", "environment", "packages"):
        origin[key] = here[key]
    origin["reproduces"] = name_of(original)
    record |= {
        "group": derived_id(f"{original.run.group} again"),
        "study": study.name,
        "profile": cluster.name,
        "created_at": now().isoformat(),
    }
    if "profile_file" in record:
        record["profile_file"] = str(cluster.file)
    try:
        snapshot.place(files, study)
        provenance.keep_for_repeat(original.folder, study)
        for number in count(1):
            record["run_id"] = derived_id(f"{name_of(original)} again, {number}")
            folder = study / record["run_id"]
            if not (folder / "run.json").exists():
                folder.mkdir(exist_ok=True)
                write_text(folder / "run.json", json.dumps(record, indent=1) + "\n")
                break
    except OSError as error:
        raise not_writable(study, error.strerror, "--out") from error
    return RunFolder(folder)
