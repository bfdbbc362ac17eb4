"""Inference by the same llama: prompts, and tokens decoded after them with a cache. Nothing is trained."""
