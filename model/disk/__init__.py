"""What a run's folder holds, and how it is written and read. Importing any of it imports no torch."""
