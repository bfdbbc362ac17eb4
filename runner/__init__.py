"""The top layer: turns one YAML study into runs on this machine or a cluster, and tracks their outcomes.

Packages, top to bottom; imports point down (checked by import-linter): cli, commands, execute, plan,
slurm, job, inputs, state, start. Jobs start in `slurm.py` and `start.py`, from a snapshot of the code.
"""
