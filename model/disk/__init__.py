"""What a run's folder holds, and how it is written and read. Importing it loads no torch."""
