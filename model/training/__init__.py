"""Trains the llama: its text, one step, the optimizer, the processes of a run, checkpoints and audits."""
