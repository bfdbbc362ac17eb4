"""Whether a backend is right, runs what it says, and trains the same model as the others.

`certificate` is torch-free and is all that a launcher or a report needs; `certify` does the work.
"""
