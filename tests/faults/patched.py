"""Runs the command line with other values in its modules: `patched MODULE:NAME=EXPRESSION... -- ARG...`."""

import importlib
import sys
from datetime import timedelta

if __name__ == "__main__":
    middle = sys.argv.index("--")
    for setting in sys.argv[1:middle]:
        target, _, expression = setting.partition("=")
        module, _, name = target.partition(":")
        owner = importlib.import_module(module)
        assert hasattr(owner, name), target
        setattr(owner, name, eval(expression, {"timedelta": timedelta}))
    sys.argv = ["runner", *sys.argv[middle + 1 :]]
    from runner.cli.main import main

    main()
