"""A process other than rank 0, from its orders to its end."""

import io
from types import SimpleNamespace
from uuid import uuid4

import pytest

from model.record.errors import UserError
from model.record.folder import RunFolder
from model.training.parallel.place import Place
from runner.job.ranks import follower
from runner.job.ranks.follower import Follower
from runner.job.ranks.meeting import Meeting
from runner.state.process import hold_gpu
from tests.analysis.fabricate import Folder, plan


@pytest.mark.fault
def test_no_other_run_gets_its_gpu_while_something_is_measured_after_the_run(root, monkeypatch):
    """Of what the task was given, the measurement may hold on to nothing."""
    uuid, refused = f"GPU-{uuid4()}", []

    def measured():
        with pytest.raises(UserError, match="in use by another run"):
            hold_gpu(uuid)
        refused.append(uuid)

    leader = SimpleNamespace(report_done=lambda: None, next_order=dict, outlast=lambda: None)
    folder = Folder(root, plan("r1"))
    folder.event("claimed")
    request = Follower(RunFolder(folder.path), Place(1, 2, 1), Meeting(attempt=1), [])
    monkeypatch.setattr("sys.argv", ["follower", "1"])
    monkeypatch.setattr("sys.stdin", io.StringIO(request.as_json()))
    monkeypatch.setattr(follower, "die_with", lambda _parent: None)
    monkeypatch.setattr(follower, "QuickExit", SimpleNamespace)
    monkeypatch.setattr(follower.Stop, "listen", lambda _self: None)
    monkeypatch.setattr(follower, "Leader", lambda *_, **__: leader)
    monkeypatch.setattr(follower, "unchanged", lambda *_: None)
    monkeypatch.setattr(follower, "prepare", lambda _config: SimpleNamespace(run=lambda _context: measured))
    monkeypatch.setattr(follower.machine, "device", lambda _device: ("a GPU", uuid))
    follower.main()
    assert refused == [uuid]
    with hold_gpu(uuid):  # free again
        pass
