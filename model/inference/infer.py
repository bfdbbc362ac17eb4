"""One run of inference: timed prefills of prompts from its text, then greedy decoding after the last."""

from __future__ import annotations

from collections.abc import Callable, Iterator
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
from model.training.profile import Work, mark

Asked = Callable[[], bool]
Read = Callable[[Tensor], tuple[Tensor, Tensor]]  # as `next_token`, of a model and a cache


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
    graphs: Graphs | None = None
    if asked.new_tokens:
        watch = Watch(config, model, judge)

        def eager(tokens_B1: Tensor, timed: bool) -> tuple[Tensor, Tensor]:
            with watch.call(cache.length + 1, timed):
                return next_token(model, cache, tokens_B1)

        for timed in (False, True):  # the first pass may load or compile something at each length
            cache.length, read = asked.prompt_length, partial(eager, timed=timed)
            if timed and asked.cuda_graphs:
                graphs = Graphs(read, cache, asked.new_tokens, logits_BV)
            records = [*_decode(config, graphs or read, logits_BV, should_stop)]
        watch.settle()
        decoded(records)
    return Inferred(config, model, cache, prompts_BT, graphs)


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


def _decode(config: RunConfig, read: Read, logits_BV: Tensor, should_stop: Asked) -> Iterator[DecodeRecord]:
    """Decode from the end of the prompts on. Only the end of the pass waits for the device."""
    asked = config.inference
    marks, tokens, largest = clock(torch.device(config.device)), [logits_BV.argmax(-1, keepdim=True)], []
    marks.start()
    for _ in range(asked.new_tokens):
        logit_B1, token_B1 = read(tokens[-1])
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


class Graphs:
    """CUDA graphs that read one token of each sample, one for each length of the cache.

    Args:
        read: what a graph repeats. It was called before at these lengths, since what it loads or compiles
            cannot be captured.
        count: lengths, from that of the cache on, which is left as it is.
        like: on the device, with a row for each sample.

    Raises:
        Unsupported: something in it cannot be captured.
    """

    def __init__(self, read: Read, cache: Cache, count: int, like: Tensor) -> None:
        self._cache, self._first = cache, cache.length
        self._tokens_B1 = like.new_zeros(like.shape[0], 1, dtype=torch.long)
        self._graphs = list[tuple[torch.cuda.CUDAGraph, tuple[Tensor, Tensor]]]()
        pool = torch.cuda.graph_pool_handle()  # one memory for all: they are replayed one after another
        for _ in range(count):
            graph = torch.cuda.CUDAGraph()
            try:
                with torch.cuda.graph(graph, pool=pool):
                    largest = read(self._tokens_B1)
            except RuntimeError as error:
                raise Unsupported([f"decoding cannot be captured as a CUDA graph: {error}"]) from error
            self._graphs.append((graph, largest))
        cache.length = self._first

    def __call__(self, tokens_B1: Tensor) -> tuple[Tensor, Tensor]:
        """As `next_token`; what it returns is overwritten by the next call at the same length."""
        graph, largest = self._graphs[self._cache.length - self._first]
        self._tokens_B1.copy_(tokens_B1)
        graph.replay()
        self._cache.length += 1
        return largest


class Inferred:
    """A run after its last token, which reads its last prompts again, and decodes one more token.

    Args:
        cache: holds keys and values of the run's last tokens.
        prompts_BT: (B, T).
        graphs: with which it decoded, if it did.
    """

    def __init__(
        self, config: RunConfig, model: Llama, cache: Cache, prompts_BT: Tensor, graphs: Graphs | None
    ) -> None:
        self.config, self.model = config, model
        self._cache, self._prompts_BT = cache, prompts_BT
        self._eager: Read = partial(next_token, model, cache)
        self._read = graphs or self._eager

    @property
    def phases(self) -> dict[Phase, Work]:
        """Prefills; and decoding, where the run has done it."""
        phases: dict[Phase, Work] = {"step": Work(self.prefill, self.prefill)}
        if self.config.inference.new_tokens:
            timed, launched = (partial(self._decode, read) for read in (self._read, self._eager))
            phases["decode"] = Work(timed, launched)
        return phases

    @torch.inference_mode()
    def prefill(self) -> None:
        """One more."""
        with mark("forward"):
            prefill(self.model, self._cache, self._prompts_BT)

    @torch.inference_mode()
    def _decode(self, read: Read) -> None:
        """Decode a token of each sample, with the median number of keys. Which one it is changes no work."""
        self._cache.length = self.config.inference.median_keys - 1
        with mark("forward"):
            read(self._prompts_BT[:, -1:])
