"""The memory that reading prompts will need is near what is allocated for it."""

import gc

import pytest
import torch

from model.inference import infer
from model.measure.memory_inference import inference_memory
from model.measure.profiler import most_allocated
from model.record.config import RunConfig
from model.training.llama import Cache

GROUPED = {"dim": 256, "layers": 2, "heads": 8, "kv_heads": 2, "ffn_dim": 1024, "vocab_size": 2000}
NARROW = {"dim": 256, "layers": 6, "heads": 4, "kv_heads": 4, "ffn_dim": 512, "vocab_size": 500}
TWO = {"prompt_length": 512, "new_tokens": 64, "batch_size": 2}
LONG = {"prompt_length": 1024, "new_tokens": 0, "batch_size": 1}
LARGE = {"dim": 4096, "layers": 4, "heads": 32, "kv_heads": 8, "ffn_dim": 14336, "vocab_size": 131072}


def config(attention, model, inference, device="cpu", dtype="float32"):
    given = {
        "attention": attention,
        "device": device,
        "task": "inference",
        "data": {"path": "x"},
        "model": model,
    }
    return RunConfig.model_validate(given | {"inference": inference | {"dtype": dtype}})


@torch.inference_mode()
def read(config):
    """Everything that a run allocates for its first prompts."""
    asked, model = config.inference, infer.built(config)
    cache = Cache.empty(config.model, asked.batch_size, asked.room, model.embedding.weight)
    shape = (asked.batch_size, asked.prompt_length)
    model.extend(cache, torch.zeros(shape, dtype=torch.long, device=config.device))


@pytest.mark.parametrize("attention", ["flash", "math", "tiled"])
@pytest.mark.parametrize("model", [GROUPED, NARROW], ids=["grouped", "narrow"])
@pytest.mark.parametrize("inference", [TWO, LONG], ids=["two prompts", "long"])
def test_the_estimate_is_within_a_tenth_of_what_is_allocated(attention, model, inference):
    asked = config(attention, model, inference)
    assert inference_memory(asked) == pytest.approx(most_allocated(lambda: read(asked)), rel=0.1)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU; PyTorch finds none here")
@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize("attention", ["auto", "cudnn", "efficient", "flash", "math", "portable"])
@pytest.mark.parametrize(
    "inference", [{"prompt_length": 4096, "batch_size": 1}, {"prompt_length": 2048, "batch_size": 4}]
)
def test_the_estimate_is_within_a_tenth_of_what_a_gpu_allocates(attention, inference):
    asked = config(attention, LARGE, inference, "cuda", "bfloat16")
    gc.collect()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()  # what a failed test's traceback holds
    read(asked)
    torch.cuda.synchronize()
    assert inference_memory(asked) == pytest.approx(torch.cuda.max_memory_allocated() - before, rel=0.1)
