"""The project's kernels for training, in Triton: a fused optimizer, and a loss without logits."""
