"""What runs on a node: one attempt of a run, from its admission to its result. Batch scripts submit."""
