"""Checks that a backend is right, runs the kernels it declares, and trains the same model as the others.

`certificate` is torch-free and all that a launcher or a report needs; `certify` does the work.
"""
