"""The processes of a run: how they find each other, and how the end of one is the end of all. Torch-free."""
