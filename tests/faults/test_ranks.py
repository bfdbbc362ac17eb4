"""A process of a run on this machine fails: the attempt ends on all of them, with the outcome that is true of it."""

import json

import pytest

TWO = "parallel: {shard: 2}\n"


@pytest.fixture
def two(study):
    """A study of one run of two processes."""
    return lambda steps=6: study(f"matrix: {{train.steps: [{steps}]}}\n", base=BASE)


from tests.conftest import TINY  # noqa: E402

BASE = TINY + "  parallel: {shard: 2}\n"


def result(root):
    (path,) = root.glob("tiny/*/attempt-1/result.json")
    return json.loads(path.read_text())


def test_a_run_of_two_processes_completes_and_says_where_they_were(runner, root, two):
    runner("launch", two(), rc=0)
    (attempt,) = root.glob("tiny/*/attempt-1")
    manifest = json.loads((attempt / "manifest.json").read_text())
    assert result(root)["outcome"] == "completed"
    assert [set(rank) for rank in manifest["ranks"]] == [{"node", "gpu_uuid"}] * 2
    assert len((attempt / "steps.jsonl").read_text().splitlines()) == 4, "rank 0 alone writes"
    assert [path.name for path in attempt.glob("ranks-*.log")] == [f"ranks-{manifest['host']}.log"]
