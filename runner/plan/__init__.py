"""Turns cells into runs: what is left to do, what it costs, and its folders on disk. It starts nothing."""
