"""Jobs of the local queue as forks of the launcher that starts them.

A job takes half a second of a processor to start Python and to import what it needs. A launcher that is itself a fork
(tests/forked.py) has imported that. Its jobs are then forks of it, so that parent, process group, signals, streams and
exit code are as after an exec, and the code is that of the snapshot, whose hash is this process's own. A job whose
interpreter or code would be another one, or that trains, is started anew, and so are all jobs of launchers that are.
"""

import atexit
import inspect
import logging
import os
import runpy
import signal
import subprocess
import sys
import threading
import traceback
from pathlib import Path
from typing import Any, NoReturn

AT_START = ("PYTHON", "LC_", "LANG", "TZ", "CLOCK_FILE", "FAULT", "PACE_SECONDS")  # what is read only then
SAME_ANYWAY = "PYTHONUNBUFFERED"  # the queue asks for it; see `_streams`
OURS = ("runner", "analysis", "model")
IN_JOBS = (
    "runner.job",
    "model.training.trainer",
    "model.training.keeper",
)  # what the stand-in is put in front of
PIPES = ("p2cread", "p2cwrite", "c2pread", "c2pwrite", "errread", "errwrite")


class Popen(subprocess.Popen[Any]):
    """Forks jobs; starts all else."""

    def _execute_child(self, *values: Any) -> None:
        start = super()._execute_child  # type: ignore[misc]
        arguments = inspect.signature(start).bind(*values).arguments
        if not serves(arguments["args"], arguments["env"]):
            start(*values)
            return
        # No signal may reach the fork while it has the launcher's handlers.
        old_mask = signal.pthread_sigmask(signal.SIG_SETMASK, signal.valid_signals())
        self.pid = os.fork()
        if not self.pid:
            become(arguments, old_mask)
        signal.pthread_sigmask(signal.SIG_SETMASK, old_mask)
        self._child_created = True
        self._close_pipe_fds(*(arguments[name] for name in PIPES))  # type: ignore[attr-defined]


def install() -> None:
    """From now on, the jobs that this process starts are forks of it."""
    subprocess.Popen = Popen  # type: ignore[misc]


def serves(command: list[str], env: dict[str, str] | None) -> bool:
    """Whether this process can become what is to be started."""
    from runner.state.code import snapshot

    if not env or "STAND_IN_TRAINER" not in env or _at_start(env) != _at_start(dict(os.environ)):
        return False
    if command[:3] != [sys.executable, "-P", "-c"] or command[5:7] != ["-m", "runner.job"]:
        return False
    return Path(command[4]).name == snapshot.current()


def _at_start(env: dict[str, str]) -> dict[str, str]:
    return {name: value for name, value in env.items() if name.startswith(AT_START) and name != SAME_ANYWAY}


def become(arguments: dict[str, Any], mask: set[signal.Signals]) -> NoReturn:
    """Be the job in this process, which has just been forked; nothing of the launcher's is run any more."""
    code = 1
    try:
        _forget()
        os.setsid()
        _streams([arguments[name] for name in ("p2cread", "c2pwrite", "errwrite")])
        os.chdir(arguments["cwd"])
        os.environ.clear()
        os.environ.update(arguments["env"])
        sys.orig_argv = arguments["args"]
        sys.argv = arguments["args"][6:]
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        runpy.run_path(str(Path(__file__).with_name("faults") / "site" / "stand_in.py"))["install"]()
        runpy.run_module("runner.job", run_name="__main__", alter_sys=True)
        code = 0
    except SystemExit as end:
        if isinstance(end.code, str):
            sys.stderr.write(f"{end.code}\n")
        else:
            code = end.code or 0
    except BaseException:
        traceback.print_exc()
    finally:
        _leave(code)


def _forget() -> None:
    """What an exec would have reset: handlers of signals, of messages and of the end, caches, and the job's modules.

    A process's own number is in a cache.
    """
    atexit._clear()
    for number in signal.valid_signals():
        if callable(signal.getsignal(number)):
            signal.signal(number, signal.SIG_DFL)
    if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    for name in OURS:
        logging.getLogger(name).handlers.clear()
        logging.getLogger(name).setLevel(logging.NOTSET)
        logging.getLogger(name).propagate = True
    for name, module in list(sys.modules.items()):
        if name.startswith(IN_JOBS):
            del sys.modules[name]
        elif name.startswith(OURS):
            for cached in vars(module).values():
                getattr(cached, "cache_clear", lambda: None)()


def _streams(files: list[int]) -> None:
    """Standard streams like those of `python -u`, and no other open file."""
    for number, file in enumerate([os.dup(file) for file in files]):
        os.dup2(file, number)
    os.closerange(3, os.sysconf("SC_OPEN_MAX"))
    sys.stdin = open(0, closefd=False)  # noqa: SIM115
    sys.stdout, sys.stderr = (open(number, "w", 1, closefd=False) for number in (1, 2))  # noqa: SIM115


def _leave(code: int) -> NoReturn:
    threading._shutdown()
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
