"""Processes of the command line that need not import it: each is a fork of one that has.

A start of `python -m runner` takes 0.3 to 0.6 s of a processor to import what it needs. Here a server has imported
that, and has run nothing yet; each process is a fork of it, with its own arguments, environment, working directory and
streams, and runs the module as `python -m` would. What Python itself reads from the environment at its start
(STARTS) is as the server found it: a caller who wants it otherwise needs a process of its own.
"""

import atexit
import contextlib
import gc
import importlib
import json
import os
import pkgutil
import runpy
import select
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TextIO

STARTS = ("PYTHON", "LC_", "LANG", "TZ", "CLOCK_FILE")
LAZY = (  # what many verbs import inside functions
    "analysis.export.pack", "analysis.query.ask", "analysis.store.collect", "analysis.store.steps", "duckdb", "psutil",
    "pyarrow.parquet", "ruamel.yaml", "submitit.slurm.slurm",
)  # fmt: skip
AVAILABLE = hasattr(os, "pidfd_open")  # Linux


class Server:
    """Forks processes.

    Args:
        env: the environment in which it starts.
    """

    def __init__(self, env: dict[str, str]) -> None:
        self.env = env
        self._requests, child_end = socket.socketpair()
        command = [sys.executable, "-P", __file__, str(child_end.fileno())]
        self._process = subprocess.Popen(
            command,
            env=env,
            pass_fds=[child_end.fileno()],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
        )
        child_end.close()

    def serves(self, env: dict[str, str]) -> bool:
        """Whether a fork can have this environment."""
        return AVAILABLE and started(env) == started(self.env)

    def run(
        self, argv: list[str], cwd: Path, env: dict[str, str], timeout: float
    ) -> subprocess.CompletedProcess[str]:
        """What `subprocess.run([python, "-P", "-m", *argv])` does, its output captured.

        Output is read when the process has ended, not when all who inherited its streams have.
        """
        with contextlib.closing(self.start(argv, cwd, env)) as process:
            try:
                texts = process.communicate(timeout)
            except TimeoutError:
                process.kill()
                raise
        return subprocess.CompletedProcess(argv, process.wait(timeout), *texts)

    def start(self, argv: list[str], cwd: Path, env: dict[str, str]) -> "Process":
        """What `subprocess.Popen([python, "-P", "-m", *argv])` does; its output goes to files."""
        parent_end, child_end = socket.socketpair()
        out, err = tempfile.TemporaryFile("w+"), tempfile.TemporaryFile("w+")  # noqa: SIM115  the process's
        with child_end, tempfile.TemporaryFile("w+") as request:
            json.dump([argv, str(cwd), env], request)
            request.seek(0)
            files = [out.fileno(), err.fileno(), request.fileno(), child_end.fileno()]
            socket.send_fds(self._requests, [b"."], files)
        return Process(parent_end, out, err)

    def close(self) -> None:
        """End the server; what it forked goes on."""
        self._requests.close()
        self._process.wait()


class Process:
    """A process that the server has forked, with what tests use of `subprocess.Popen`.

    Args:
        answers: where the server says its id, and in the end its exit code.
        out: file of its standard output.
        err: file of its standard error.
    """

    def __init__(self, answers: socket.socket, out: TextIO, err: TextIO) -> None:
        self._answers, self._out, self._err = answers, out, err
        self.returncode: int | None = None
        (self.pid,) = struct.unpack("i", answers.recv(4))

    def wait(self, timeout: float | None = None) -> int:
        """Its exit code, once it has ended; raises TimeoutError."""
        if self.returncode is None:
            self._answers.settimeout(timeout)
            (self.returncode,) = struct.unpack("i", self._answers.recv(4))
        return self.returncode

    def communicate(self, timeout: float | None = None) -> tuple[str, str]:
        """What it wrote until its end; raises TimeoutError."""
        self.wait(timeout)
        return self.text_of(self._out), self.text_of(self._err)

    @property
    def stderr(self) -> str:
        """What it has written to standard error so far."""
        return self.text_of(self._err)

    @staticmethod
    def text_of(stream: TextIO) -> str:
        """A file's text so far. The place in it is left to the process, which shares it."""
        file = stream.fileno()
        text = os.pread(file, os.fstat(file).st_size, 0).decode()
        return text.replace("\r\n", "\n").replace("\r", "\n")

    def send_signal(self, number: int) -> None:
        """Signal it, unless it has ended."""
        with contextlib.suppress(TimeoutError):
            self.wait(0.001)
        if self.returncode is None:
            with contextlib.suppress(ProcessLookupError):  # it has ended since
                os.kill(self.pid, number)

    def kill(self) -> None:
        """Kill it, unless it has ended."""
        self.send_signal(signal.SIGKILL)

    def close(self) -> None:
        """Let go of its streams; it goes on."""
        for file in (self._answers, self._out, self._err):
            file.close()


def started(env: dict[str, str]) -> dict[str, str]:
    """What of an environment Python reads at its start."""
    return {name: value for name, value in env.items() if name.startswith(STARTS)}


def models(base: type[Any]) -> Iterator[type[Any]]:
    """The classes below one."""
    for child in base.__subclasses__():
        yield child
        yield from models(child)


def prepare() -> None:
    """Import all verbs, and what they import inside functions; `runner.cli.main` arms signals and is left out.

    What each would make of the same code and packages is made here: pydantic's validators, and the hashes of both.
    New databases are copies of one, as in the tests' own processes.
    """
    from pydantic import BaseModel

    import runner.cli.run
    import runner.commands
    from runner.state.code import provenance, snapshot

    verbs = (f"runner.commands.{verb.name}" for verb in pkgutil.iter_modules(runner.commands.__path__))
    for name in (*verbs, *LAZY):
        importlib.import_module(name)
    for model in models(BaseModel):
        model.model_rebuild()
    snapshot.current()
    packages = provenance.packages()
    provenance.packages = lambda: packages
    for name in ("blank.py", "linked.py"):
        namespace = runpy.run_path(str(Path(__file__).with_name(name)))
        namespace.get("prepare", bool)()
        namespace["install"]()
    gc.collect()
    gc.freeze()  # so that no fork copies these pages to count references


def serve(requests: socket.socket) -> list[int]:
    """Fork a process for each request, and answer with its id and then its exit code, until nobody asks any more.

    Returns:
        In each fork, its standard output, standard error, and a file that says what to run.
    """
    running: dict[int, tuple[int, socket.socket]] = {}
    while True:
        for ready in select.select([requests, *running], [], [])[0]:
            if ready is not requests:
                pid, asker = running.pop(ready)
                os.close(ready)
                _answer(asker, os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
                asker.close()
                continue
            _, files, *_ = socket.recv_fds(requests, 1, 4)
            if not files:
                os._exit(0)  # Python would try to free what is frozen
            asker = socket.socket(fileno=files.pop())
            if not (pid := os.fork()):
                for other in (requests, asker, *(asker for _, asker in running.values())):
                    other.close()
                for other in running:
                    os.close(other)
                return files
            for file in files:
                os.close(file)
            _answer(asker, pid)
            running[os.pidfd_open(pid)] = pid, asker


def _answer(asker: socket.socket, number: int) -> None:
    with contextlib.suppress(BrokenPipeError):  # who asked may be gone
        asker.send(struct.pack("i", number))


def become(files: list[int]) -> None:
    """Run what was asked for in this process, as if it had just started."""
    *streams, request = files
    for number, file in enumerate(streams, start=1):
        os.dup2(file, number)
        os.close(file)
    with os.fdopen(request) as file:
        (module, *arguments), cwd, env = json.load(file)
    os.chdir(cwd)
    os.environ.clear()
    os.environ.update(env)
    if "sitecustomize" in sys.modules:
        importlib.reload(sys.modules["sitecustomize"])  # it reads the environment
    if module.startswith("tests."):
        sys.path.insert(0, cwd)
    if module == "runner":
        runpy.run_path(str(Path(__file__).with_name("jobs.py")))["install"]()
    sys.argv = [module, *arguments]
    sys.orig_argv = [sys.executable, "-P", "-m", *sys.argv]
    try:
        runpy.run_module(module, run_name="__main__", alter_sys=True)
    except BaseException as end:
        if isinstance(end, SystemExit) and isinstance(end.code, int):
            leave(end.code)
        gc.unfreeze()
        raise


def leave(code: int) -> None:
    """End as Python does, but leave the memory to the system: to free it takes longer than most commands run."""
    threading._shutdown()
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


if __name__ == "__main__":
    with socket.socket(fileno=int(sys.argv[1])) as channel:
        prepare()
        fork_request = serve(channel)
    become(fork_request)
