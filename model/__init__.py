"""The bottom floor: what a run is, the model it trains, and the kernels it trains with."""
