"""Which code a run executes: commit, changes, packages, and the snapshot that its jobs start from."""
