"""What is known about runs, from disk and from Slurm. It starts no run and prints nothing."""
