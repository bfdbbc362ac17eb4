"""What an audit costs, how close honest backends come to failing one, and what it does to steps and memory.

    python benchmarks/audits.py [--device cpu] [--attention NAME ...] [--steps 30] [--compile]
                                [--sequence 4096] [--batch 1] [--layers 32] [--dim 4096] [--optimizer adamw]

Trains each backend twice on this project's sources as text, each time in a process of its own: without
audits, and with one in every step. `share` is what the audits of a long run take of its time: one in each
stretch of `every` steps. `weight` is how long a FLOP of an audit takes against one of training, as in
`model.training.audit.WEIGHT`.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

HERE = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(HERE))
WARM_UP = 5  # steps


def main() -> None:
    """Both runs of each backend, and a table."""
    asked = argparse.ArgumentParser()
    for name, default in (
        ("steps", 30), ("sequence", 4096), ("batch", 1), ("layers", 32), ("dim", 4096), ("heads", 32),
        ("kv-heads", 8),
    ):  # fmt: skip
        asked.add_argument(f"--{name}", type=int, default=default)
    asked.add_argument("--device", default="cuda")
    asked.add_argument("--dtype", default="bfloat16")
    asked.add_argument("--optimizer", default="adamw")
    asked.add_argument("--attention", nargs="*", default=["cudnn"])
    asked.add_argument("--compile", action="store_true")
    asked.add_argument("--run", choices=("plain", "audited"), help="train this here, and print JSON")
    given = asked.parse_args()
    if given.run:
        print(json.dumps(_trained(given)))
        return
    for name in given.attention:
        runs = {kind: _in_a_process(name, kind) for kind in ("plain", "audited")}
        print(name, json.dumps(_compared(given, name, runs), indent=1), flush=True)


def _in_a_process(name: str, kind: str) -> dict[str, Any]:
    command = [sys.executable, *sys.argv, "--attention", name, "--run", kind]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def _config(given: argparse.Namespace, name: str) -> Any:
    from model.record.config import RunConfig

    shape = {"dim": given.dim, "layers": given.layers, "heads": given.heads, "kv_heads": given.kv_heads}
    train = {
        "steps": given.steps, "sequence_length": given.sequence, "batch_size": given.batch,
        "dtype": given.dtype, "compile": given.compile, "optimizer": given.optimizer, "log_every": 1,
    }  # fmt: skip
    model = {**shape, "ffn_dim": given.dim * 7 // 2, "vocab_size": 131072 if given.dim == 4096 else 512}
    fields = {"attention": name, "device": given.device, "model": model, "train": train}
    return RunConfig.model_validate({**fields, "data": {"path": "unused"}})


def _trained(given: argparse.Namespace) -> dict[str, Any]:
    from model.attention.verify.accuracy import judge
    from model.record.text import Source
    from model.training import audit
    from model.training.trainer import train
    from runner.commands.data import write_corpus

    records, audits = [], []
    audit.every = lambda _: 1
    with TemporaryDirectory() as folder:
        text = Path(folder) / "text.parquet"
        write_corpus(HERE / "model", text, "*.py")
        look = (lambda taken: audits.append(judge(taken))) if given.run == "audited" else None
        train(_config(given, given.attention[0]), Source(text), records.append, judge=look)
    return {
        "steps": [record.step_seconds for record in records],
        "losses": [record.loss for record in records],
        "memory_bytes": records[-1].memory_bytes,
        "seconds": [found.seconds for found in audits],
        "ratios": [
            {what: (each.measured or 0) / each.tolerance for what, each in found.tensors.items()}
            for found in audits
        ],
        "failed": [found.reason for found in audits if not found.passed],
    }


def _compared(given: argparse.Namespace, name: str, runs: dict[str, dict[str, Any]]) -> dict[str, Any]:
    from model.measure.flops import flop_per_token
    from model.training.audit import PRODUCTS, every

    plain, audited, config = runs["plain"], runs["audited"], _config(given, name)
    step, own = median(plain["steps"][WARM_UP:]), median(audited["seconds"][WARM_UP:])
    model, length = config.model, given.sequence
    scores = model.heads // model.kv_heads * length**2 / 2
    step_flop = flop_per_token(model, length) * length * given.batch
    return {
        "step_seconds": step,
        "audited step / plain step": median(audited["steps"][WARM_UP:]) / step,
        "audit_seconds": own,
        "first audit_seconds": audited["seconds"][0],
        "every": every(config),
        "share of a long run, %": 100 * own / (every(config) * step),
        "weight": own / (PRODUCTS * 2 * scores * model.head_dim) / (step / step_flop),
        "peak GiB, plain": plain["memory_bytes"] / 2**30,
        "peak GiB, audited": audited["memory_bytes"] / 2**30,
        "same losses": plain["losses"] == audited["losses"],
        "largest measured / allowed": {
            what: max(each[what] for each in audited["ratios"]) for what in ("o", "dq", "dk", "dv")
        },
        "failed": audited["failed"],
    }


if __name__ == "__main__":
    main()
