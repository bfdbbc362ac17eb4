"""Inference with the same llama: reading prompts, and decoding tokens with a cache. Nothing is trained."""
