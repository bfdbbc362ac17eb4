"""An attention backend in a package of its own: plain attention, some rows of queries at a time.

Install it beside Assay (`pip install ./examples/backend`), then `runner verify --backend chunked`, and write
`attention: chunked` in a study.
"""

from __future__ import annotations

import torch
from torch import Tensor

from model.attention import Backend, Case, Kernels, Launches, Supports, _reasons

ROWS = 256


def attend(q_BTHD: Tensor, k_BTKD: Tensor, v_BTKD: Tensor, causal: bool) -> Tensor:
    """softmax(Q K^T / sqrt(D)) V, with ROWS x T scores at a time and sums in float32."""
    group = q_BTHD.shape[2] // k_BTKD.shape[2]
    q_BHTD = q_BTHD.transpose(1, 2).float() * q_BTHD.shape[-1] ** -0.5
    k_BHTD, v_BHTD = (x.transpose(1, 2).float().repeat_interleave(group, 1) for x in (k_BTKD, v_BTKD))
    rows = []
    for start in range(0, q_BHTD.shape[2], ROWS):
        s_BHRT = q_BHTD[:, :, start : start + ROWS] @ k_BHTD.mT
        if causal:
            future = torch.ones(s_BHRT.shape[-2:], dtype=torch.bool, device=s_BHRT.device).triu(start + 1)
            s_BHRT = s_BHRT.masked_fill(future, -torch.inf)
        rows.append(s_BHRT.softmax(-1) @ v_BHTD)
    return torch.cat(rows, 2).transpose(1, 2).to(q_BTHD.dtype)


SUPPORTS = Supports(devices=("cuda", "cpu"), dtypes=("float32", "bfloat16"), grouped="copied")


def unsupported_reasons(case: Case) -> list[str]:
    """One sentence per reason, with what to do about it; an empty list means that it runs."""
    return _reasons.declared(case, SUPPORTS)


# It has no kernels of its own but uses PyTorch's operators, which are matched by name on a GPU too. What is
# declared must take most of the time. Such operators are nobody's own: others may declare them, too.
KERNELS = Kernels(
    forward=r"^aten::(matmul|softmax|masked_fill)$",
    backward=r"^aten::(bmm|_softmax_backward_data|masked_fill)$",
    operators=True,
)

backend = Backend(
    summary="Plain attention, a few rows at a time (an example)",
    unsupported_reasons=unsupported_reasons,
    attend=attend,
    launches=Launches(cuda=KERNELS, cpu=KERNELS),
    supports=SUPPORTS,
)
