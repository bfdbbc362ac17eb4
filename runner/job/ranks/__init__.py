"""The processes of a run: how they find each other, and how all end when one ends. Torch-free."""
