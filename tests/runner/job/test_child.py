"""A child process that has done its work leaves at once, and only then."""

import subprocess
import sys

import pytest

SCRIPT = """
import atexit, sys
from runner.job.child import QuickExit
leaving = QuickExit()
atexit.register(print, "registered later, run before")
class Slow:
    def __del__(self, write=sys.stderr.write): write("torn down")
sys.slow = Slow()
print("said", end=" ")
leaving.done = {done}
{end}
"""


@pytest.mark.parametrize(
    ("done", "end", "code", "torn"),
    [(True, "", 0, False), (False, "", 0, True), (False, "sys.exit(3)", 3, True), (False, "1 / 0", 1, True)],
)
def test_a_process_skips_its_teardown_only_when_its_work_is_done(done, end, code, torn):
    script = SCRIPT.format(done=done, end=end)
    process = subprocess.run(
        [sys.executable, "-P", "-c", script], capture_output=True, text=True, check=False
    )
    assert process.returncode == code, process.stderr
    assert process.stdout == "said registered later, run before\n"
    assert ("torn down" in process.stderr) is torn
