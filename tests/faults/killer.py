"""Runs the command line and kills it with SIGKILL at a chosen instant: `killer MODULE:FUNCTION WHEN NTH ARG...`.

WHEN is `before` or `after` the NTH call of the function. Nothing else of the program is changed.
"""

import functools
import importlib
import os
import signal
import sys


def arm(target: str, when: str, nth: int) -> None:
    module, _, path = target.partition(":")
    owner = importlib.import_module(module)
    *parents, name = path.split(".")
    for parent in parents:
        owner = getattr(owner, parent)
    original, calls = getattr(owner, name), 0

    @functools.wraps(original)
    def wrapped(*args, **kwargs):
        nonlocal calls
        calls += 1
        if calls == nth and when == "before":
            os.kill(os.getpid(), signal.SIGKILL)
        result = original(*args, **kwargs)
        if calls == nth and when == "after":
            os.kill(os.getpid(), signal.SIGKILL)
        return result

    setattr(owner, name, wrapped)
    for importer in list(sys.modules.values()):  # a fork of a process that has imported much
        for attribute in [attribute for attribute, value in vars(importer).items() if value is original]:
            setattr(importer, attribute, wrapped)


if __name__ == "__main__":
    target, when, nth, *arguments = sys.argv[1:]
    arm(target, when, int(nth))
    sys.argv = ["runner", *arguments]
    from runner.cli.main import main

    main()
