"""What a run of inference reads and decodes."""

from __future__ import annotations

from analysis.report.settings.values import Row, plain, setting, whole
from model.record.units import counted

_of = "inference"


def _decoded(run: Row) -> str | None:
    tokens = setting(_of, "new_tokens")(run)
    if not tokens:
        return None if tokens is None else "nothing"
    return f"{counted(tokens, 'token')}, greedily, with a KV cache"


def _compiled(run: Row) -> str | None:
    found = setting(_of, "compile")(run)
    return None if found is None else "yes, block by block; decoding is eager" if found else "no"


TOPICS = (
    ("Prompt length", whole(setting(_of, "prompt_length")), ("inference.prompt_length",)),
    ("Batch", whole(setting(_of, "batch_size")), ("inference.batch_size",)),
    ("Decoded after the last prompts", _decoded, ("inference.new_tokens",)),
    ("Prefills", whole(setting(_of, "steps")), ("inference.steps",)),
    ("Prefills of warm-up", whole(setting(_of, "warmup_steps")), ("inference.warmup_steps",)),
    ("Precision", plain(setting(_of, "dtype")), ("inference.dtype",)),
    ("`torch.compile`", _compiled, ("inference.compile",)),
)
