"""One run of inference: timed prefills of prompts from its text, then greedy decoding after the last."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from functools import partial

import torch
from torch import Tensor

from model import attention
from model.attention import _fp8
from model.inference.audit import Watch
from model.record.config import RunConfig
from model.record.errors import Diverged, Interrupted, Unsupported
from model.record.records import DecodeRecord, StepRecord, now
from model.record.speed import Phase
from model.record.text import Source
from model.training import data
from model.training.audit import Judge
from model.training.feed import Feed
from model.training.llama import Attend, Cache, Llama, compile_block, drawn
from model.training.meter import Meter, clock, no_collector
from model.training.profile import mark

Asked = Callable[[], bool]


@no_collector()
@torch.inference_mode()
def infer(
    config: RunConfig,
    source: Source,
    report: Callable[[StepRecord], None],
    decoded: Callable[[list[DecodeRecord]], None],
    should_stop: Asked = lambda: False,
    judge: Judge | None = None,
) -> Inferred:
    """Read `steps` batches of prompts, and decode after the last.

    Args:
        report: called after each prefill.
        decoded: called once with a record of each position, if tokens are decoded.
        should_stop: asked after each prefill and each decoded token.
        judge: of copies of decoding calls; raises if a backend is wrong. None: no call is audited.

    Returns:
        An object that can do more of both, for a profile.

    Raises:
        Unsupported: the backend, device or precision cannot run here. Nothing else takes its place.
        Diverged: the logits of a prompt are not finite, whose record is reported first; or those of a decoded
            token, of which none is reported.
        Interrupted: asked to stop. Nothing is kept to go on from.
        UserError: the data file is written to meanwhile.
    """
    if reasons := config.unsupported():
        raise Unsupported([*reasons.values()])
    model = built(config)
    asked = config.inference
    cache = Cache.empty(config.model, asked.batch_size, asked.room, model.embedding.weight)
    prompts_BT, logits_BV = _prefills(config, source, model, cache, report, should_stop)
    if asked.new_tokens:
        watch = Watch(config, model, judge)
        for timed in (False, True):  # the first pass may load or compile something at each length
            cache.length = asked.prompt_length
            watched = partial(watch.call, timed=timed)
            records = [*_decode(config, model, cache, logits_BV, should_stop, watched)]
        watch.settle()
        decoded(records)
    return Inferred(config, model, cache, prompts_BT)


def built(config: RunConfig) -> Llama:
    """The run's llama, with room for its prompts and what is decoded after them."""
    backend = attention.require(config.attention, config.attention_case)
    attend = attend_by_length(backend, config.attention_case)
    finish = compile_block if config.inference.compile else None
    return drawn(config, config.inference.room, attend, finish=finish).eval()


def attend_by_length(backend: attention.Backend, case: attention.Case) -> Attend:
    """Attention for prompts, which have as many queries as keys, and for decoded tokens, which have one.

    Where prompts' calls have numbers of 8 bits, these are made within the call, and count in its time.
    """
    prompt, whole = case.alone, backend
    if case.compile:
        whole = attention.for_compile(backend)

    def attend(q_BTHD: Tensor, k_BTKD: Tensor, v_BTKD: Tensor) -> Tensor:
        keys = k_BTKD.shape[1]
        if q_BTHD.shape[1] < keys:
            return attention.attend(backend, case.decoding(keys), q_BTHD, k_BTKD, v_BTKD)
        if not case.fp8:
            return attention.attend(whole, prompt, q_BTHD, k_BTKD, v_BTKD)
        assert backend.fp8  # `refusals` says so of others
        rounded = _fp8.quantised(q_BTHD, k_BTKD, v_BTKD, backend.fp8.one_scale)
        return attention.attend(backend, prompt, *rounded)

    return attend


def _prefills(
    config: RunConfig,
    source: Source,
    model: Llama,
    cache: Cache,
    report: Callable[[StepRecord], None],
    should_stop: Asked,
) -> tuple[Tensor, Tensor]:
    """The last prompts, (B, T), and the logits after them, (B, V); each batch overwrites the one before."""
    device = torch.device(config.device)
    source = source.checked(config.text.text_column)
    stream, meter = Feed(data.Batches(config, source), device), Meter(device)
    source = source.confirmed(opened=False)
    for step in range(1, config.inference.steps + 1):
        prompts = next(stream)
        meter.restart()
        # Timed region: from here to done(), by the device's own clock. The prompts are there.
        meter.count(prompts)
        logits_BV = prefill(model, cache, prompts.inputs_BT)
        meter.done()
        # End of the timed region.
        report(meter.record(step))
        source = source.confirmed(opened=True)
        if not logits_BV.isfinite().all():
            raise Diverged(f"the logits of step {step} are not finite")
        if should_stop():
            raise Interrupted(step, saved=False)
    return prompts.inputs_BT, logits_BV


def _decode(
    config: RunConfig,
    model: Llama,
    cache: Cache,
    logits_BV: Tensor,
    should_stop: Asked,
    watched: Callable[[int], AbstractContextManager[None]],
) -> Iterator[DecodeRecord]:
    """Decode from the end of the prompts on. Only the end of the pass waits for the device."""
    asked = config.inference
    marks, tokens, largest = clock(torch.device(config.device)), [logits_BV.argmax(-1, keepdim=True)], []
    marks.start()
    for _ in range(asked.new_tokens):
        with watched(cache.length + 1):
            logit_B1, token_B1 = next_token(model, cache, tokens[-1])
        tokens.append(token_B1)
        largest.append(logit_B1)  # NaN where any logit is
        marks.mark()
        if should_stop():
            raise Interrupted(asked.steps, saved=False)
    finite_N = torch.stack(largest).isfinite().flatten(1).all(1)
    if not finite_N.all():
        position = asked.prompt_length + int(finite_N.int().argmin())
        raise Diverged(f"the logits of decoded position {position} are not finite")
    token_ids, spans, time = torch.cat(tokens, dim=1).T.tolist(), marks.spans(), now()
    for place, (ids, seconds) in enumerate(zip(token_ids[:-1], spans, strict=True)):
        yield DecodeRecord(position=asked.prompt_length + place, time=time, seconds=seconds, token_ids=ids)


def prefill(model: Llama, cache: Cache, prompts_BT: Tensor) -> Tensor:
    """Read prompts into an empty cache; logits of the token after each, (B, V)."""
    cache.length = 0
    return model.extend(cache, prompts_BT)


def next_token(model: Llama, cache: Cache, tokens_B1: Tensor) -> tuple[Tensor, Tensor]:
    """Read a token of each sample; the largest logit after it, and the token that has it, (B, 1) each."""
    return model.extend(cache, tokens_B1).max(-1, keepdim=True)


class Inferred:
    """A run after its last token, which reads its last prompts again, and decodes one more token.

    Args:
        cache: holds keys and values of the run's last tokens.
        prompts_BT: (B, T).
    """

    def __init__(self, config: RunConfig, model: Llama, cache: Cache, prompts_BT: Tensor) -> None:
        self.config, self.model = config, model
        self._cache, self._prompts_BT = cache, prompts_BT

    @property
    def phases(self) -> dict[Phase, Callable[[], None]]:
        """Prefills; and decoding, where the run has done it."""
        decoding: dict[Phase, Callable[[], None]] = {"decode": self.decode}
        return {"step": self.prefill, **(decoding if self.config.inference.new_tokens else {})}

    @torch.inference_mode()
    def prefill(self) -> None:
        """One more."""
        with mark("forward"):
            prefill(self.model, self._cache, self._prompts_BT)

    @torch.inference_mode()
    def decode(self) -> None:
        """One token of each sample, with the median number of keys. Which one it is changes no work."""
        self._cache.length = self.config.inference.median_keys - 1
        with mark("forward"):
            next_token(self.model, self._cache, self._prompts_BT[:, -1:])
