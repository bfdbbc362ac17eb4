"""Decoding with a cache gives what reading everything at once gives, or a backend says that it cannot decode."""

import pytest
import torch

from model import attention
from model.inference.infer import attend_by_length, built, infer
from model.record import backends
from model.record.config import RunConfig
from model.record.errors import Diverged, Interrupted, Unsupported
from model.record.records import now
from model.record.text import Source
from model.training.llama import Cache, Llama, Past

# Logits of random weights are about 0.5. float32 rounds 1.2e-7 of that in each of some hundred operations.
TOLERANCE = {"float32": 2e-5, "float64": 1e-12}
PROMPT, NEW = 37, 21


def run_config(backend="math", **inference):
    return RunConfig.model_validate({
        "attention": backend,
        "task": "inference",
        "device": "cpu",
        "model": {"dim": 64, "layers": 3, "heads": 4, "kv_heads": 2, "ffn_dim": 96, "vocab_size": 300},
        "data": {"path": "unused"},
        "inference": {
            "steps": 3, "warmup_steps": 1, "batch_size": 2, "prompt_length": PROMPT, "new_tokens": NEW,
            "dtype": "float32", **inference,
        },
    })  # fmt: skip


def decoders():
    """The backends that can decode on this CPU, as they say themselves."""
    case = run_config().attention_case
    return [name for name in backends.names() if not attention.refusals(attention.load(name), case)]


def decoded(model, config, tokens_BT, start=PROMPT):
    """Logits after the prompt and after each later token, (T - start + 1, B, V)."""
    cache = Cache.empty(config.model, tokens_BT.shape[0], config.inference.room, model.embedding.weight)
    logits = [model.extend(cache, tokens_BT[:, :start])]
    logits += [model.extend(cache, tokens_BT[:, t : t + 1]) for t in range(start, tokens_BT.shape[1])]
    return torch.stack(logits)


def whole(model, tokens_BT):
    """The same logits, each by reading all tokens up to there at once, without a cache."""
    config = run_config()
    parts = []
    for end in range(PROMPT, tokens_BT.shape[1] + 1):
        cache = Cache.empty(config.model, tokens_BT.shape[0], end, model.embedding.weight)
        case = run_config(prompt_length=end, new_tokens=0).attention_case
        for block in model.blocks:
            block.attention.attend = attend_by_length(attention.load("math"), case)
        parts.append(model.extend(cache, tokens_BT[:, :end]))
    return torch.stack(parts)


def tokens(length=PROMPT + NEW):
    return torch.randint(300, (2, length), generator=torch.Generator().manual_seed(5))


def test_backends_can_decode_on_a_cpu():
    assert {"auto", "flash", "math", "tiled"} <= set(decoders())


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("backend", decoders())
@torch.inference_mode()
def test_decoding_with_a_cache_gives_the_logits_of_reading_all_tokens_at_once(backend, dtype):
    config = run_config(backend)
    model, tokens_BT = built(config).to(getattr(torch, dtype)), tokens()
    logits, exact = decoded(model, config, tokens_BT), whole(model, tokens_BT)
    assert (logits - exact).abs().max() < TOLERANCE[dtype]
    assert torch.equal(logits.argmax(-1), exact.argmax(-1)), "greedy tokens"


@pytest.mark.parametrize("start", [1, 2, PROMPT])
@torch.inference_mode()
def test_it_does_not_matter_where_the_prompt_ends(start):
    config, tokens_BT = run_config(), tokens()
    model = built(
        config.model_copy(
            update={
                "inference": config.inference.model_copy(
                    update={"prompt_length": start, "new_tokens": PROMPT + NEW - start}
                )
            }
        )
    )
    logits = decoded(model, config, tokens_BT, start)[-1]
    assert (logits - whole(built(config), tokens_BT)[-1]).abs().max() < TOLERANCE["float32"]


@torch.inference_mode()
def test_the_last_logits_are_those_of_the_model_that_is_trained():
    config, tokens_BT = run_config(new_tokens=0), tokens(PROMPT)
    model = built(config)
    (logits,) = decoded(model, config, tokens_BT)
    assert torch.equal(logits, model(tokens_BT)[:, -1]) or torch.allclose(
        logits, model(tokens_BT)[:, -1], atol=1e-6
    )


def alike(logits, exact):
    """Which of the positions agree to 100 times the tolerance; NaN agrees with nothing."""
    return ((logits - exact).abs() <= 100 * TOLERANCE["float32"]).flatten(1).all(1)


class Late(Past):
    """A planted fault: a token's key and value are kept one place too late."""

    def extended(self, k_BTKD, v_BTKD):
        start, end = self.length, self.length + k_BTKD.shape[1]
        if start:
            self.keys_BTKD[:, start - 1 : end - 1], self.values_BTKD[:, start - 1 : end - 1] = k_BTKD, v_BTKD
            return self.keys_BTKD[:, :end], self.values_BTKD[:, :end]
        return super().extended(k_BTKD, v_BTKD)


@torch.inference_mode()
def test_a_cache_that_is_off_by_one_position_is_caught(monkeypatch):
    config, tokens_BT = run_config(), tokens()
    exact = whole(built(config), tokens_BT)
    monkeypatch.setattr("model.training.llama.Past", Late)
    logits = decoded(built(config), config, tokens_BT)
    assert torch.allclose(logits[0], exact[0], atol=TOLERANCE["float32"]), "the prefill does not use it"
    assert not alike(logits[1:], exact[1:]).any()


@torch.inference_mode()
def test_positions_that_are_off_by_one_are_caught():
    config, tokens_BT = run_config(), tokens()
    model = built(config)
    exact = whole(built(config), tokens_BT)
    table = model.cos_TD, model.sin_TD
    model.cos_TD, model.sin_TD = (torch.cat((x[:PROMPT], x[PROMPT - 1 : -1])) for x in table)
    logits = decoded(model, config, tokens_BT)
    assert not alike(logits[1:], exact[1:]).any()


@torch.inference_mode()
def test_a_full_cache_takes_no_more_tokens():
    config = run_config(new_tokens=1)
    with pytest.raises(ValueError, match="no room for 39 tokens, but for 38"):
        decoded(built(config), config, tokens(PROMPT + 2))


def inferred(corpus, **options):
    steps, rows = [], []
    infer(run_config(**options), Source(corpus), steps.append, rows.extend)
    return steps, rows


@pytest.fixture(scope="module")
def of_math(corpus):
    return inferred(corpus)


def test_every_prefill_and_every_decoded_position_has_a_record(of_math):
    steps, rows = of_math
    assert [step.step for step in steps] == [1, 2, 3]
    assert {
        (step.steps, step.tokens, step.loss, step.learning_rate, step.training_tokens) for step in steps
    } == {(1, 2 * PROMPT, None, None, None)}
    assert [row.position for row in rows] == list(range(PROMPT, PROMPT + NEW))
    assert all(row.seconds > 0 and row.time <= now() for row in rows)
    assert {len(row.token_ids) for row in rows} == {2}


@pytest.mark.parametrize("backend", decoders())
def test_all_backends_decode_the_same_tokens(corpus, backend, of_math):
    _, rows = inferred(corpus, backend=backend)
    assert [row.token_ids for row in rows] == [row.token_ids for row in of_math[1]]


def test_without_new_tokens_nothing_is_decoded(corpus):
    steps, rows = [], pytest.fail
    infer(run_config(new_tokens=0), Source(corpus), steps.append, rows)
    assert len(steps) == 3


def test_a_compiled_prefill_decodes_the_same_tokens(corpus, of_math):
    _, rows = inferred(corpus, backend="flash", compile=True)
    assert [row.token_ids for row in rows] == [row.token_ids for row in of_math[1]]


def test_a_backend_that_cannot_decode_says_so_and_may_still_read_prompts():
    backend = attention.Backend(
        "prefill", lambda case: [], attention.load("math").attend, attention.load("math").launches
    )
    case = run_config().attention_case
    assert attention.refusals(backend, case) == [attention.NOT_CACHED]
    assert not attention.refusals(backend, run_config(new_tokens=0).attention_case)


def test_padded_prompts_are_refused(corpus):
    config = run_config().model_copy(update={"data": run_config().text.model_copy(update={"mode": "pad"})})
    with pytest.raises(Unsupported, match=r"data\.mode=pack"):
        infer(config, Source(corpus), pytest.fail, pytest.fail)


def test_logits_that_are_not_finite_end_the_run(corpus, monkeypatch):
    steps = []
    monkeypatch.setattr("model.training.llama.Llama.extend", lambda *_: torch.full((2, 300), torch.nan))
    with pytest.raises(Diverged, match="logits of step 1"):
        infer(run_config(), Source(corpus), steps.append, pytest.fail)
    assert len(steps) == 1


@pytest.mark.parametrize("value", [torch.nan, torch.inf])
def test_logits_that_are_not_finite_while_decoding_end_the_run(corpus, monkeypatch, value):
    """One logit of one sample at one position, after which all would be finite again."""
    steps, extend = [], Llama.extend

    def spoilt(model, cache, tokens_BT):
        logits_BV = extend(model, cache, tokens_BT)
        if cache.length == PROMPT + 5:
            logits_BV[1, 7] = value
        return logits_BV

    monkeypatch.setattr(Llama, "extend", spoilt)
    with pytest.raises(Diverged, match=f"logits of decoded position {PROMPT + 4} "):
        infer(run_config(), Source(corpus), steps.append, pytest.fail)
    assert len(steps) == 3


@pytest.mark.parametrize(("stop_call", "steps"), [(2, 2), (10, 3)])
def test_a_run_stops_when_asked_and_keeps_nothing(corpus, stop_call, steps):
    calls = iter(range(1, 100))
    with pytest.raises(Interrupted, match=f"its {steps} steps are lost"):
        infer(run_config(), Source(corpus), lambda _: None, pytest.fail, lambda: next(calls) >= stop_call)


def test_cuda_graphs_need_cuda():
    config = run_config(cuda_graphs=True)
    reason = config.unsupported()["inference.cuda_graphs"]
    assert "device: cuda" in reason and "--set inference.cuda_graphs=false" in reason


def test_without_cuda_graphs_a_run_has_the_id_it_had_before_them():
    plain, graphs = run_config().identity(), run_config(cuda_graphs=True).identity()
    assert "cuda_graphs" not in plain["inference"]
    assert graphs["inference"].pop("cuda_graphs") and graphs == plain


@pytest.mark.gpu
@pytest.mark.parametrize("backend", ["auto", "math", "flash"])
def test_cuda_graphs_decode_the_same_tokens(corpus, backend):
    """A graph repeats the kernels of eager calls, so that both agree to the last bit."""
    decoded_ids = []
    for graphs in (False, True):
        config = run_config(backend, dtype="bfloat16", cuda_graphs=graphs).model_copy(
            update={"device": "cuda"}
        )
        rows = []
        run = infer(config, Source(corpus), lambda _: None, rows.extend)
        run.phases["decode"].timed()  # once more, at the median length
        decoded_ids.append([row.token_ids for row in rows])
    assert len(decoded_ids[0]) == NEW and decoded_ids[0] == decoded_ids[1]
