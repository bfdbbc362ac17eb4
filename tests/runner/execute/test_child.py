"""How a run's process on this machine ended that left no result."""

import pytest

from model.record.folder import RunFolder
from runner.execute import local
from runner.inputs.profile import read_cluster
from runner.state import ledger
from runner.state.attempts import JobShape, NextAttempt
from tests.analysis.fabricate import Folder, plan

ABORTS = """#!/bin/sh
echo "$SAYS" >&2
kill -ABRT $$
"""


@pytest.mark.fault
@pytest.mark.parametrize(
    ("message", "outcome", "reason"),
    [
        ("libc++abi: terminating due to uncaught exception of type std::bad_alloc: std::bad_alloc", "oom_host", "out of host memory, and aborted"),
        ("free(): invalid pointer", "failed", "killed by SIGABRT"),
    ],
)  # fmt: skip
def test_a_run_that_aborts_is_out_of_memory_only_if_it_says_so(root, tmp_path, message, outcome, reason):
    (job := tmp_path / "job").write_text(ABORTS)
    job.chmod(0o755)
    (path := tmp_path / "p.yaml").write_text(f"executor: local\npython: {job}\nenv: {{SAYS: '{message}'}}\n")
    folder = RunFolder(Folder(root, plan("r1")).path)
    task = NextAttempt(folder, 1, "r1", 1, JobShape(None, None, None))
    local.run_queue([task], read_cluster(str(path)), local.Watcher())
    assert (ledger.state(folder).outcome, ledger.state(folder).reason) == (outcome, reason)
