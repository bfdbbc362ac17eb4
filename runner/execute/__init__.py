"""Starts runs on this machine or through Slurm, waits for them, and repairs what a dead launcher left."""
