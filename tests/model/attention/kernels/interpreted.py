"""Triton's interpreter, mended, and what the tests of kernels compare with: numbers, and their attention in float64."""

import math

import pytest
import torch

LENGTHS = {  # queries, keys, the first query's place, heads, key heads, causal
    "decoding": (1, 50, 49, 8, 2, True),
    "decoding by several programs": (1, 150, 149, 4, 1, True),
    "programs that see no key": (2, 150, 40, 4, 1, True),
    "several programs without a mask": (1, 151, 0, 4, 2, False),
    "a chunk in the middle": (33, 100, 20, 3, 1, True),
    "some queries see no key": (40, 64, -7, 2, 2, True),
    "no query sees a key": (33, 20, -33, 2, 1, True),
    "keys end before the diagonal": (100, 17, 0, 2, 1, True),
    "all keys are past": (50, 40, 200, 2, 1, True),
    "no mask": (20, 65, 0, 6, 1, False),
}


def mend(monkeypatch: pytest.MonkeyPatch) -> None:
    """Mend the interpreter of Triton 3.6 in three places.

    It makes an index of an array of one number, which NumPy 2.4 refuses (triton-lang/triton issue 9171). Its multiply-add
    rounds twice, where a GPU's rounds once. And bfloat16 is truncated, and multiplied as if its bits were integers.
    """
    from triton.runtime import interpreter

    patch, builder = interpreter._patch_lang_tensor, interpreter.InterpreterBuilder
    dot, cast = builder.create_dot, builder.cast_impl

    def patched(tensor, scope):
        patch(tensor, scope)
        scope.set_attr(tensor, "__index__", lambda self: self.handle.data.item())

    def fused(self, x, y, z):
        exact = x.data.astype("float64") * y.data.astype("float64") + z.data
        return interpreter.TensorHandle(exact.astype(z.data.dtype), z.dtype.scalar)

    def widened(x):
        if x.dtype.scalar != interpreter.tl.bfloat16:
            return x
        data = (x.data.astype("uint32") << 16).view("float32")
        return interpreter.TensorHandle(data, interpreter.tl.float32)

    def rounded(self, src, dst_type):
        if (src.dtype.scalar, dst_type.scalar) != (interpreter.tl.float32, interpreter.tl.bfloat16):
            return cast(self, src, dst_type)
        data = torch.from_numpy(src.data.copy()).bfloat16().view(torch.uint16).numpy()
        return interpreter.TensorHandle(data, dst_type.scalar)

    def exact_dot(self, a, b, *others):
        return dot(self, widened(a), widened(b), *others)

    monkeypatch.setattr(interpreter, "_patch_lang_tensor", patched)
    monkeypatch.setattr(builder, "create_fma", fused)
    monkeypatch.setattr(builder, "create_dot", exact_dot)
    monkeypatch.setattr(builder, "cast_impl", rounded)


def hasten(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have the interpreter replace `triton.language` once a launch.

    It replaces all of it again in each call of a function by a kernel, which takes half of the time.
    """
    from triton.runtime import interpreter

    launch, replace = interpreter.GridExecutor.__call__, interpreter._patch_lang
    language, replaced = (interpreter.tl, interpreter.tl.core), set()

    def launched(executor, *args, **options):
        replaced.clear()  # what a launch replaces it puts back
        launch(executor, *args, **options)

    def replace_once(function):
        modules = frozenset(id(x) for x in function.__globals__.values() if any(x is y for y in language))
        if modules in replaced:
            return interpreter._LangPatchScope()
        replaced.add(modules)
        return replace(function)

    monkeypatch.setattr(interpreter.GridExecutor, "__call__", launched)
    monkeypatch.setattr(interpreter, "_patch_lang", replace_once)


def drawn(device, T, U, H, K, D=16, scale=1.0):
    """Q, K, V and dO."""
    rng = torch.Generator().manual_seed(0)
    shapes = [(2, T, H, D), (2, U, K, D), (2, U, K, D), (2, T, H, D)]
    dtype = torch.float32 if device == "cpu" else torch.bfloat16
    return [(scale * torch.randn(shape, generator=rng)).to(device, dtype) for shape in shapes]


def exact(q, k, v, do, causal, offset):
    """O, dQ, dK, dV, and log2 of each row's sum of exponentials, in float64."""
    leaves = [x.double().requires_grad_() for x in (q, k, v)]
    group = q.shape[2] // k.shape[2]
    q, k, v = (x.transpose(1, 2) for x in leaves)
    s = q @ k.repeat_interleave(group, 1).mT / q.shape[-1] ** 0.5
    if causal:
        query, key = (torch.arange(n, device=s.device) for n in s.shape[-2:])
        s = s.masked_fill(key > query[:, None] + offset, -torch.inf)
    p = s.softmax(-1).nan_to_num(0.0)  # of a row that sees no key
    o = (p @ v.repeat_interleave(group, 1)).transpose(1, 2)
    lse = s.detach().logsumexp(-1) / math.log(2)
    return [o.detach(), *torch.autograd.grad(o, leaves, do.double()), lse]


def enormous(device):
    """Scores near 2^17 that differ by eighths: exact in float32, but not with log2 of a sum added to them."""
    q, k, v, do = drawn(device, 40, 40, 2, 1)
    q.zero_(), k.zero_()
    q[..., 0], q[..., 1] = 2.0**9, 1.0
    k[..., 0], k[..., 1] = 2.0**10, torch.arange(40, device=k.device)[:, None] % 7
    return q, k, v, do


def off(values, reference) -> float:
    """The relative error, or the absolute one of what is zero."""
    return ((values.double() - reference).norm() / reference.norm().clamp_min(1.0)).item()
