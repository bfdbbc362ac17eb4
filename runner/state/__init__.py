"""What is known of runs, on disk and in Slurm's words. It starts, stops and prints nothing."""
