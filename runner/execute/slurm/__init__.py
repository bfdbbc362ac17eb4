"""The launcher's side of Slurm: batch scripts, submission, and questions about jobs."""
