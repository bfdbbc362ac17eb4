"""Which tensors TMA can address."""

import pytest
import torch

from model.attention.kernels.dense import fits

X_BTHD = torch.zeros(2, 8, 6, 64, dtype=torch.bfloat16)


@pytest.mark.parametrize(
    ("x", "expected"),
    [
        (X_BTHD, True),
        (X_BTHD.transpose(1, 2), True),
        (X_BTHD[:, 1:, 2:4], True),
        (X_BTHD[..., 8:40], True),  # 8 elements of 2 bytes are 16
        (X_BTHD[..., 4:36], False),  # begins at 8 bytes
        (X_BTHD[..., ::2], False),  # strided rows
        (X_BTHD.flatten()[: 2 * 8 * 6 * 60].view(2, 8, 6, 60), False),  # rows of 120 bytes
        (X_BTHD[:, :, :1].expand(2, 8, 6, 64), False),  # one head in the place of all
        (torch.zeros(1, 1, 1, 64).as_strided((1, 1, 1, 64), (3, 3, 3, 1)), True),  # strides that are not used
        (torch.zeros(2, 1, 1, 65).as_strided((2, 1, 1, 64), (65, 65, 65, 1)), False),
    ],
)
def test_rows_have_to_be_dense_and_to_begin_at_multiples_of_16_bytes(x: torch.Tensor, expected: bool) -> None:
    assert fits(x) is expected
