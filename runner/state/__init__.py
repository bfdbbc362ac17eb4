"""What is known about runs, from disk and from Slurm. It neither starts nor stops runs, nor prints."""
