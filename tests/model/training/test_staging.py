"""A copy of tensors in host memory holds their bytes, whatever becomes of the tensors."""

import pytest
import torch

from model.training import staging, tensorfile
from model.training.staging import Staging


def tensors(device="cpu"):
    """Some that are smaller than a block of 100 bytes, larger, empty, single numbers, and not contiguous."""
    generator = torch.Generator().manual_seed(0)
    shapes = [(3,), (7, 11), (), (0,), (25,), (60, 2)]
    contiguous = [torch.randn(shape, generator=generator).to(device) for shape in shapes]
    return [*contiguous, contiguous[1].bfloat16(), contiguous[5].T]


def contents(blocks):
    return b"".join(blocks)


def expected(originals):
    return contents(bytes(piece) for piece in tensorfile.passing(originals))


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch):
    monkeypatch.setattr(staging, "BLOCK", 100)


def test_a_copy_has_the_tensors_bytes_in_their_order_in_whole_blocks():
    blocks = Staging().hold(tensors())
    assert contents(blocks) == expected(tensors())
    assert {len(block) for block in blocks[:-1]} == {100}


def test_a_tensor_that_changes_afterwards_does_not_change_its_copy():
    originals = tensors()
    blocks = Staging().hold(originals)
    for tensor in originals:
        tensor.zero_()
    assert contents(blocks) == expected(tensors())


def test_the_next_copy_takes_the_same_memory_and_a_smaller_one_has_no_bytes_of_the_one_before():
    stage = Staging()
    stage.hold(tensors())
    addresses = [block.data_ptr() for block in stage._blocks]
    blocks = stage.hold(tensors()[:2])
    assert [block.data_ptr() for block in stage._blocks] == addresses
    assert contents(blocks) == expected(tensors()[:2])
    assert stage.hold([]) == []


def no_memory_after(monkeypatch, blocks):
    """Torch has so many more blocks to give."""
    empty, remaining = torch.empty, [blocks]

    def limited_empty(*shape, **options):
        remaining[0] -= 1
        if remaining[0] < 0:
            raise RuntimeError("DefaultCPUAllocator: can't allocate memory")
        return empty(*shape, **options)

    monkeypatch.setattr(torch, "empty", limited_empty)


@pytest.mark.fault
def test_without_enough_memory_for_a_copy_none_is_kept(monkeypatch):
    stage = Staging()
    no_memory_after(monkeypatch, 3)
    with pytest.raises(MemoryError, match="host memory ran out after copying 300 bytes of it"):
        stage.hold(tensors())
    assert stage._blocks == []
    monkeypatch.undo()
    assert contents(stage.hold(tensors())) == expected(tensors())


@pytest.mark.gpu
def test_on_a_gpu_a_copy_in_pinned_memory_is_complete_before_the_next_kernel_overwrites_the_tensor(
    monkeypatch,
):
    """Large enough that a copy takes milliseconds, and the kernel after it is in the same stream."""
    monkeypatch.setattr(staging, "BLOCK", 64 * 2**20)
    stage, numbers = Staging(), torch.arange(2**26, device="cuda", dtype=torch.int32)
    for turn in range(3):
        numbers.add_(1)
        copy = stage.hold([numbers])
        numbers.fill_(-1)
        copied = torch.frombuffer(bytearray(contents(copy)), dtype=torch.int32)
        assert torch.equal(copied, torch.arange(2**26, dtype=torch.int32) + turn + 1)
        numbers.copy_(copied)
    assert len(stage._blocks) == 4
    assert all(block.is_pinned() for block in stage._blocks)


def test_a_copy_leaves_some_of_the_hosts_memory_to_others(monkeypatch):
    """Linux would give it, and end the process when it is used."""
    stage, free_bytes = Staging(), iter([staging.SPARE + 200, staging.SPARE + 100, staging.SPARE + 99])
    monkeypatch.setattr(staging.hostmemory, "left", lambda: next(free_bytes))
    with pytest.raises(MemoryError, match="ran out after copying 200 bytes of it"):
        stage.hold(tensors())
    assert not stage._blocks


def test_a_copy_that_has_its_memory_asks_for_no_more(monkeypatch):
    stage = Staging()
    stage.hold(tensors())
    monkeypatch.setattr(staging.hostmemory, "left", lambda: 0)
    assert contents(stage.hold(tensors())) == expected(tensors())


def test_where_nobody_says_what_is_left_it_is_tried(monkeypatch):
    monkeypatch.setattr(staging.hostmemory, "left", lambda: None)
    assert contents(Staging().hold(tensors())) == expected(tensors())
