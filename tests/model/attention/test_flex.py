"""flex_attention's mask, and that it is compiled whatever becomes of the model."""

import pytest
import torch
from torch.nn.attention.flex_attention import create_block_mask

from model.attention import flex, for_compile


@pytest.mark.parametrize("length", [1, 100, 128, 300, 512])
def test_flex_writes_down_the_mask_that_pytorch_would_find(length: int) -> None:
    mine = flex._causal_blocks(length, torch.device("cpu"))
    theirs = create_block_mask(flex._before, None, None, length, length, device="cpu")
    assert torch.equal(mine.to_dense(), theirs.to_dense())
    assert torch.equal(mine.kv_num_blocks, theirs.kv_num_blocks)
    assert torch.equal(mine.full_kv_num_blocks, theirs.full_kv_num_blocks)
    assert mine.seq_lengths == theirs.seq_lengths == (length, length)


def test_flex_compiles_itself_inside_a_compiled_model(monkeypatch: pytest.MonkeyPatch) -> None:
    """The model's graph ends before it; its own is compiled all the same, and is not run piece by piece."""
    graphs = []
    own = torch.compile(
        lambda q, k, v, block_mask, enable_gqa: q * 2,
        fullgraph=True,
        backend=lambda g, _: graphs.append(g) or g,
    )
    monkeypatch.setattr(flex, "_compiled", lambda: own)
    attend = for_compile(flex.backend).attend
    q = torch.randn(1, 64, 4, 16)
    model = torch.compile(lambda q: attend(q + 1, q, q, True) - 1, backend="aot_eager")
    torch.testing.assert_close(model(q), (q + 1) * 2 - 1)
    assert len(graphs) == 1
