"""What is known of runs, on disk and in Slurm's words. It starts and stops no run, and prints nothing."""
