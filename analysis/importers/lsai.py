"""JSONL logs of ETH Zurich's course Large-Scale AI Engineering: one object a record, one run a file.

Its program logs step 1 and every fifth step, trains on one GPU, and calls a file NAME_YYYYMMDD_HHMMSS.jsonl.
`time_delta` is the seconds since the record before.
"""

from analysis.importers import Importer
from analysis.importers._mapping import Constants, LogQuantity, MappedColumn, Mapping
from analysis.importers._table import json_lines

_COLUMNS: dict[LogQuantity, str] = {
    "step": "step",
    "time": "timestamp",
    "loss": "loss",
    "learning_rate": "learning_rate",
    "grad_norm": "grad_norm",
    "interval_seconds": "time_delta",
    "tokens_per_second": "tokens_per_second",
    "training_tokens_per_second": "training_tokens_per_second",
    "training_tokens_percentage": "training_tokens_percentage",
    "mfu": "mfu",
    "tflops": "tflops",
}

importer = Importer(
    title="JSONL logs of the course Large-Scale AI Engineering (step, loss, mfu, tflops, ...)",
    read=json_lines,
    mapping=Mapping(
        columns={quantity: MappedColumn(column=name) for quantity, name in _COLUMNS.items()},
        file_name=r"(?P<attention>.+)_\d{8}_\d{6}",
        constants=Constants(gpus=1),
    ),
)
