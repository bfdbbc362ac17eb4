"""The top layer: turns one YAML study into runs on this machine or a cluster, and tracks their outcomes.

Packages, top to bottom; imports point down (checked by import-linter): cli, commands, execute, plan, job,
spec, state. `start.py` stands apart: it is how jobs start, from a snapshot of the code.
"""
