"""What a run is, and what it leaves on disk: configuration, records, files, errors. Torch-free."""
