"""What runs on a node: one attempt of a run, from admission to result. Batch scripts submit for it."""
