"""The top floor: from one YAML study to runs on this machine or a cluster, and what became of them.

Packages, top to bottom; imports point down (checked by import-linter): cli, commands, execute, plan, job,
spec, state. `start.py` is apart: jobs start with it, from a snapshot of the code.
"""
