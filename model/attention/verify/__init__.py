"""Checks a backend's calls alone: numbers, habits, kernels. `model.training.certify` makes a trial of them.

`certificate` is torch-free and all that a launcher or a report needs.
"""
