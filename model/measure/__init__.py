"""What a run costs, and what its machine is and can do. Nothing here trains."""
