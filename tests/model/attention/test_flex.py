"""flex_attention's mask, and that it is compiled whatever becomes of the model."""

import pytest
import torch
from torch.nn.attention.flex_attention import create_block_mask

from model.attention import flex, for_compile

SQUARE = [(length, length) for length in (1, 100, 128, 300, 512)]
OFFSET = [(1, 100), (128, 256), (128, 300), (100, 300), (256, 257), (300, 1024), (384, 1000)]


@pytest.mark.parametrize(("queries", "keys"), SQUARE + OFFSET, ids=str)
def test_flex_writes_down_the_mask_that_pytorch_would_find(queries: int, keys: int) -> None:
    own_mask = flex._causal_blocks(queries, keys, torch.device("cpu"))
    pytorch_mask = create_block_mask(flex._seen_from(keys - queries), None, None, queries, keys, device="cpu")
    assert torch.equal(own_mask.to_dense(), pytorch_mask.to_dense())
    assert torch.equal(own_mask.kv_num_blocks, pytorch_mask.kv_num_blocks)
    assert torch.equal(own_mask.full_kv_num_blocks, pytorch_mask.full_kv_num_blocks)
    for row, count in enumerate(own_mask.kv_num_blocks.flatten()):
        assert torch.equal(own_mask.kv_indices[0, 0, row, :count], pytorch_mask.kv_indices[0, 0, row, :count])
    assert own_mask.seq_lengths == pytorch_mask.seq_lengths == (queries, keys)


def test_flex_compiles_itself_inside_a_compiled_model(monkeypatch: pytest.MonkeyPatch) -> None:
    """The model's graph ends before it; its own is compiled all the same, and is not run piece by piece."""
    graphs = []
    compiled = torch.compile(
        lambda q, k, v, block_mask, enable_gqa: q * 2,
        fullgraph=True,
        backend=lambda graph, _: graphs.append(graph) or graph,
    )
    monkeypatch.setattr(flex, "_compiled", lambda: compiled)
    attend = for_compile(flex.backend).attend
    q = torch.randn(1, 64, 4, 16)
    model = torch.compile(lambda q: attend(q + 1, q, q, True) - 1, backend="aot_eager")
    torch.testing.assert_close(model(q), (q + 1) * 2 - 1)
    assert len(graphs) == 1
