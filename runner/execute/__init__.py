"""Starts runs, waits for them, and repairs what a dead launcher left: on this machine, or through Slurm."""
