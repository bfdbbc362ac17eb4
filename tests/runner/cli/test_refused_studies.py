"""Studies that must be refused: each with its exit code, its place, and the words that help."""

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from model.record.errors import UserError
from runner.commands.init import STUDY
from runner.inputs.expansion import expand
from runner.inputs.study import read_study
from tests.conftest import TINY

pytestmark = pytest.mark.refused

HEAD = "title: t\nbase: {data: {path: text.parquet}}\n"  # a whole study in two lines
CALLS = "title: t\nbase: {task: attention, call: {backends: math"
RULE = "matrix: {seed: [0, 1]}\nrules: [{where: {seed: 0}, %s}]\n"

# The whole file, where the error is, what the message says.
FILES = {
    "empty": ("", "1:1", "the file is empty; `runner init`"),
    "comment": ("# only\n", "1:1", "the file is empty"),
    "a list": ("- a\n", "1:1", "expected keys and values, got ['a'] (keys: name, title"),
    "a word": ("hello\n", "1:1", "got 'hello'"),
    "null": ("~\n", "1:1", "got nothing"),
    "program": ("import os\nprint(3)\n", "1:1", "expected keys and values"),
    "profile": ("executor: local\n", "1:1", "unknown key 'executor'"),
    "binary": (b"\x1f\x8b\x08\x00", "1:2", "byte 0x8b is not UTF-8; save the file as UTF-8"),
    "utf-16": ("title: t\n".encode("utf-16"), "1:1", "not UTF-8"),
    "latin-1": ("title: é\n".encode("latin-1"), "1:8", "byte 0xe9 is not UTF-8"),
    "nul": ("title: t\0\n", "1:9", "U+0000"),
    "old Mac line ends": ("title: t\rbase: x\r", "1:9", "U+000D"),
    "bidirectional": ("title: a\u202eb\n", "1:9", "U+202E"),
    "byte order mark inside": ("title: t\n\ufeffbase: {}\n", "2:1", "U+FEFF, ZERO WIDTH NO-BREAK SPACE"),
    "no-break spaces": ("title: t\nbase:\n\u00a0\u00a0device: cpu\n", "3:1", "U+00A0, NO-BREAK SPACE"),
    "look-alike key": (HEAD + "m\u0430trix: {seed: [0]}\n", "3:1", "U+0430, CYRILLIC SMALL LETTER A"),
    "look-alike setting": (HEAD + "matrix: {s\u0435ed: [0]}\n", "3:10", "U+0435, CYRILLIC SMALL LETTER IE"),
    "full-width digit": (HEAD + "matrix: {seed: [\uff16]}\n", "3:17", "must be a whole number"),
    "tab": ("title: t\nbase:\n\tdevice: cpu\n", "3:1", "found a tab; indent YAML with spaces"),
    "two documents": ("title: t\n---\ntitle: u\n", "2:1", "remove the line `---`"),
    "trailing dashes": (HEAD + "---\n", "3:1", "a second YAML document starts here"),
    "second colon": ("title: My study: part 2\n", "1:16", "put text with ': ' in quotes"),
    "no space": ("title: t\nbase:{device: cpu, seed: 1}\n", "2:24", "a space after each key's ':'"),
    "no colon": ("title t\nbase: x\n", "2:5", "does the line above lack a ':'?"),
    "at sign": ("title: @me\n", "1:8", "put the text in quotes"),
    "open quote": ('title: "abc\nbase: {}\n', "1:8", "this quotation mark is never closed"),
    "backslash": ('title: "C:\\path"\n', "1:12", "in single quotes, a backslash stands for itself"),
    "open bracket": ("title: t\nmatrix: {seed: [0, 1}\n", "2:21", "expected ',' or ']'"),
    "list before text": ("title: t\nmatrix: {x: [2]y}\n", "2:16", "expected ',' or '}', but got a value"),
    "stray bracket": ("title: t\nmatrix: ]\n", "2:9", "expected a value, but found ']'"),
    "list before keys": ("[a]\ntitle: t\n", "2:1", "no key can be here"),
    "open brace": ("title: t\nbase: {device: cpu\nmatrix: {}\n", "3:7", "in the value that begins on line 2"),
    "indentation": ("title: t\nbase:\n    device: cpu\n  data: {}\n", "4:3", "the indentation does not match"),
    "duplicate key": (HEAD + "title: u\n", "3:1", "'title' is already set on line 1"),
    "duplicate section": ("title: t\nbase: {data: {path: a}, data: {mode: pad}}\n", "2:25", "already set"),
    "nested and dotted": ("title: t\nbase: {data: {path: a}, data.path: b}\n", "2:25", "keep one of the two"),
    "scale sets an axis": (
        HEAD + "matrix: {parallel.shard: [1, 2]}\nscales:\n  full: {set: {parallel: {shard: 4}}}\n",
        "5:27", "a scale's `set` cannot change it; give this scale values for it under its `matrix`",
    ),
    "scale sets a zipped axis": (
        HEAD + "zip: [{seed: [1, 2]}]\nscales: {full: {set: {seed: 4}}}\n",
        "4:23", "give this scale values for it under its `zip`",
    ),
    "duplicate anchor": ("title: &a t\ndescription: &a u\n", "2:14", "the anchor 'a' is already used"),
    "undefined alias": ("title: *nope\n", "1:8", "undefined alias 'nope'"),
    "alias in its anchor": ("title: &a [*a]\n", "1:8", "an alias inside its own anchor"),
    "deep": ("title: t\nbase: " + "{a: " * 50 + "1" + "}" * 50 + "\n", "2:167", "more than 40 levels deep"),
    "merge": ("a: &b {c: 1}\nd:\n  <<: *b\n", "3:3", "merge keys (<<) are not part of YAML 1.2"),
    "tag": ("title: !!python/object:os.system x\n", "1:8", "write a plain value"),
    "tag of binary data": ("title: !!binary aGk=\n", "1:8", "write a plain value"),
    "tag of a wrong value": ("title: !!bool x\n", "1:8", "is not a valid number, date or boolean"),
    "directive": ("# as of old\n%YAML 1.1\n---\ntitle: yes\n", "2:1", "read as YAML 1.2"),
    "list as key": ("? [a, b]\n: c\n", "1:3", "a key must be a string"),
    "number as key": ("1: 2\n", "1:1", "a key must be a string; put it in quotes"),
    "huge file": ("# " + "x" * 1_000_001, "", "1,000,003 bytes; the limit for a study or profile"),
    "typo": ("titel: t\n", "1:1", "did you mean 'title'"),
    "setting at the top": (HEAD + "steps: 60\n", "3:1", "belongs under `base`, one that varies under `matrix`"),
    "section at the top": (HEAD + "model: {dim: 3}\n", "3:1", "belongs under `base`"),
    "no title": ("base: {data: {path: text.parquet}}\n", "1:1", "missing key 'title'"),
    # Advice that would be refused in turn is none.
    "number as the data": (
        "title: t\nbase: {data: {path: 3}}\n", "2:15: 'data.path'", "must be text, such as \"3\" in quotes",
    ),
    "number as a column of the data": (
        "title: t\nbase: {data: {path: a.parquet, text_column: 3}}\n", "2:32: 'data.text_column'", "must be text",
    ),
    "number as a tile": (
        f"{CALLS}, tile: 64}}}}\n", "2:48", "'call.tile' must be text: tile '64' must look like 128x64: whole numbers",
    ),
    "number as a shape": (CALLS.replace("backends: math", "shape: 4") + "}}\n", "2:32", "shape '4' must look like B2 T4096"),
    "number as backends": (CALLS.replace("math", "4") + "}}\n", "2:32", "'call.backends' must name a backend (valid: all, "),
    "number as an attention": ("title: t\nbase: {attention: 4}\n", "2:8", "'attention' must name a backend (valid: auto, "),
    "number as a task": ("title: t\nbase: {task: 4}\n", "2:8", "'task' must be text: unknown task '4' (valid: training, "),
    "one number as tiles": (f"{CALLS}}}}}\nmatrix: {{call.tile: 64}}\n", "3:10", "'call.tile' must be a list, got 64"),
    "dropout of calls as a fraction": (
        f"{CALLS}, dropout: 3/16}}}}\n", "2:48", "'call.dropout' must be a number: write 0.1875, got '3/16'",
    ),
    "negative steps with a point": (f"{CALLS}, steps: -3.0}}}}\n", "2:48", "'call.steps' must be a whole number, got -3.0"),
    "nested axis of no setting": (
        f"{CALLS}}}}}\nmatrix: {{call: {{tiles: [1]}}}}\n", "3:10", "as one dotted name, such as SECTION.SETTING",
    ),
    "number as title": ("title: 2024\n", "1:1", "'title' must be text, such as \"2024\" in quotes"),
    "title of two lines": ("title: |\n  a\n  b\n", "1:1", "a title is one line of text"),
    "blank title": ("title: ' '\n", "1:1", "a title is one line of text"),
    "escape in a description": (HEAD + 'description: "a\\e[31mb"\n', "3:14", "U+001B"),
    "escape in a key": (HEAD + '"a\\e": 1\n', "3:1", "U+001B"),
    "half a surrogate pair": ('title: "\\ud800"\n', "1:8", "U+D800"),
    "name with a slash": (HEAD + "name: a/b\n", "3:1", "a name has at most 100 letters, digits"),
    "name of dots": (HEAD + "name: ..\n", "3:1", "starts with a letter or digit"),
    "name of a number": (HEAD + "name: 3\n", "3:1", 'such as "3" in quotes'),
    "no base": ("title: t\n", "1:1", "`base` lacks data.path"),
    "no path": ("title: t\nbase: {device: cpu}\n", "2:1", "`base` lacks data.path"),
    "null base": ("title: t\nbase:\n", "2:1", "'base' must have keys and values of its own, got nothing"),
    "text as base": ("title: t\nbase: cpu\n", "2:1", "'base' must have keys and values"),
    "text as section": ("title: t\nbase: {data: a.parquet}\n", "2:8", "'data' is a section: set one of data.path"),
    "null section": ("title: t\nbase: {train: }\n", "2:8", "'train' is a section"),
    "setting below a value": ("title: t\nbase: {train.steps: {a: 1}}\n", "2:22", "holds one value, so it has no 'a'"),
}  # fmt: skip

# What is appended to a tiny study of six lines.
ADDED = {
    "lr": ("matrix: {train.lr: [1]}\n", "7:10", "did you mean 'train.learning_rate'"),
    "wd": ("matrix: {wd: [1]}\n", "7:10", "did you mean 'train.weight_decay'"),
    "seq_len": ("matrix: {train.seq_len: [1]}\n", "7:10", "did you mean 'train.sequence_length'"),
    "max_steps": ("matrix: {max_steps: [1]}\n", "7:10", "did you mean 'train.steps'"),
    "n_layers": ("matrix: {model.n_layers: [1]}\n", "7:10", "did you mean 'model.layers'"),
    "backend": ("matrix: {backend: [math]}\n", "7:10", "did you mean 'attention'"),
    "axis is a section": ("matrix: {train: [1]}\n", "7:10", "'train' is a section"),
    "axis is one value": ("matrix: {seed: 0}\n", "7:10", "'seed' must be a list, such as [0], got 0"),
    "axes in one": ("matrix: {parallel: [{shard: 2}]}\n", "7:21", "write a separate axis for each, such as parallel.shard: [...]"),
    "nested in where": ("rules: [{where: {parallel: {shard: 2}}, expect: failed}]\n", "7:18", "such as parallel.shard: [...]"),
    "nested in a scale": ("scales: {s: {matrix: {parallel: [{shard: 2}]}}}\n", "7:34", "such as parallel.shard: [...]"),
    "nested axis": ("matrix: {train: {steps: [1]}}\n", "7:10", "write an axis as one dotted name, such as train.steps"),
    "list where a rule is": ("rules: {where: {seed: 0}}\n", "7:1", "'rules' must be a list, got"),
    "axis is empty": ("matrix: {seed: []}\n", "7:10", "'seed' must have at least 1 item"),
    "axis is null": ("matrix: {seed: }\n", "7:10", "'seed' must be a list, got nothing"),
    "null in an axis": ("matrix: {seed: [null]}\n", "7:17", "text, a finite number, true or false, got nothing"),
    "list in an axis": ("matrix: {seed: [[0]]}\n", "7:17", "true or false, got [0]"),
    "NaN": ("matrix: {train.learning_rate: [.nan]}\n", "7:32", "a finite number"),
    "infinity": ("matrix: {train.learning_rate: [1e999]}\n", "7:32", "a finite number"),
    "matrix is a list": ("matrix: [seed]\n", "7:1", "'matrix' must have keys and values of its own"),
    "steps true": ("matrix: {train.steps: [true]}\n", "7:24", "'train.steps' must be a whole number, got true"),
    "steps as text": ("matrix: {train.steps: ['4']}\n", "7:24", "must be a whole number: write 4, got '4'"),
    "steps as a fraction": ("matrix: {train.steps: [8/2, 9/2]}\n", "7:24", "must be a whole number: write 4, got '8/2'"),
    "steps as a broken fraction": ("matrix: {train.steps: [9/2]}\n", "7:24", "must be a whole number, got '9/2'"),
    "dropout as a fraction": ("matrix: {train.attention_dropout: [1/16]}\n", "7:36", "must be a number: write 0.0625, got '1/16'"),
    "dropout as a fraction that it cannot be": ("matrix: {train.attention_dropout: [1/10]}\n", "7:36", "must be a number, got '1/10'"),
    "rate over zero": ("matrix: {train.learning_rate: [1/0]}\n", "7:32", "must be a number, got '1/0'"),
    "margin as a fraction": ("margins: {loss: 1/50}\n", "7:11", "must be a number: write 0.02, got '1/50'"),
    "steps 1e3": ("matrix: {train.steps: [1e3]}\n", "7:24", "must be a whole number: write 1000"),
    "steps of 27 digits": (f"matrix: {{train.steps: [{'9' * 27}]}}\n", "7:24", "must be less than 2147483648"),
    "batch_size 2**63": (f"matrix: {{train.batch_size: [{2**63}]}}\n", "7:29", "must be less than 2147483648"),
    "5000 digits": (f"matrix: {{seed: [{'9' * 5000}]}}\n", "7:17", "is not a valid number"),
    "date": ("matrix: {seed: [2024-13-45]}\n", "7:17", "is not a valid number, date or boolean"),
    "rate true": ("matrix: {train.learning_rate: [true]}\n", "7:32", "must be a number, got true"),
    "rate of zero": ("matrix: {train.learning_rate: [0]}\n", "7:32", "must be greater than 0"),
    "compile yes": ("matrix: {train.compile: [yes]}\n", "7:26", "must be true or false, got 'yes'"),
    "dtype": ("matrix: {train.dtype: [fp32]}\n", "7:24", "must be 'bfloat16', 'float16' or 'float32'"),
    "fused loss on a CPU": ("matrix: {train.loss: [linear_cross_entropy]}\n", "7:23", "needs a GPU; use train.loss=cross_entropy in the study"),
    "one pass on a CPU": ("matrix: {train.optimizer: [adamw_one_pass]}\n", "7:28", "needs a GPU; use train.optimizer=adamw in the study"),
    "float8 on a CPU": ("matrix: {train.float8: [rowwise]}\n", "7:25", "needs a GPU; use train.float8=none in the study"),
    "float8 of float32": ("matrix: {device: [cuda], train.float8: [rowwise]}\n", "7:41", "train.float8=rowwise needs bfloat16; use --set"),
    "float8 of odd sizes": ("matrix: {device: [cuda], train.dtype: [bfloat16], train.float8: [rowwise], model.ffn_dim: [24]}\n", "7:66", "needs multiples of 16, but model.ffn_dim (24)"),
    "uneven parts": ("matrix: {train.accumulate: [4], train.batch_size: [6]}\n", "7:52", "batch_size 6 is not a multiple of accumulate 4"),
    "heads in the base": ("rules: [{where: {train.steps: 6}, set: {model.heads: 3, model.layers: 1}}]\nmatrix: {train.steps: [6]}\n", "7:41", "dim 32 is not a multiple of heads 3"),
    "uneven samples": ("matrix: {parallel.shard: [1, 3]}\n", "7:30", "train.batch_size 2 is not a multiple of parallel.shard 3"),
    "uneven parts of samples": ("matrix: {train.accumulate: [2], parallel.replicate: [2]}\n", "7:54", "train.batch_size 2 is not a multiple of parallel.replicate 2 x train.accumulate 2"),
    "uneven chunks": ("matrix: {parallel.context: [1, 5]}\n", "7:32", "train.sequence_length 32 is not a multiple of 2 x parallel.context 5"),
    "uneven heads": ("matrix: {parallel.tensor: [1, 3]}\n", "7:31", "model.heads 2 is not a multiple of parallel.tensor 3"),
    "uneven key heads": ("matrix: {parallel.tensor: [1, 2]}\n", "7:31", "model.kv_heads 1 is not a multiple of parallel.tensor 2"),
    "uneven feed-forward": ("matrix: {model.ffn_dim: [9], model.kv_heads: [2], parallel.tensor: [2]}\n", "7:69", "model.ffn_dim 9 is not a multiple of parallel.tensor 2"),
    "uneven zip of processes": ("zip: [{parallel.shard: [2, 4], train.batch_size: [2, 6]}]\n", "7:54", "train.batch_size 6 is not"),
    "samples and another axis": ("matrix: {parallel.shard: [3], parallel.replicate: [1]}\n", "7:27", "train.batch_size 2 is not a multiple of parallel.shard 3"),
    "float8 of split weights": ("matrix: {device: [cuda], train.dtype: [bfloat16], train.float8: [none, rowwise], model.kv_heads: [2], model.dim: [64], parallel.tensor: [2]}\n", "7:138", "use parallel.tensor=1 in the study and a larger parallel.shard, or train.float8=none in the study"),
    "float8 of few tokens": ("matrix: {device: [cuda], train.dtype: [bfloat16], train.float8: [rowwise], parallel.context: [8]}\n", "7:66", "needs multiples of 16, but train.batch_size / train.accumulate x train.sequence_length / 8 processes (8)"),
    "nothing to gather": ("matrix: {parallel.shard: [2, 1], parallel.reshard: [false]}\n", "7:53", "reshard false keeps gathered parameters, but shard 1 gathers none"),
    "reshard by a number": ("matrix: {parallel.reshard: [0]}\n", "7:29", "must be true or false, got 0"),
    "no process": ("matrix: {parallel.shard: [0]}\n", "7:27", "'parallel.shard' must be greater than 0"),
    "processes as text": ("matrix: {parallel.context: ['2']}\n", "7:29", "must be a whole number: write 2, got '2'"),
    "negative processes": ("matrix: {parallel.tensor: [-1]}\n", "7:28", "must be greater than 0"),
    "processes misspelt": ("matrix: {parallel.shards: [2]}\n", "7:10", "did you mean 'parallel.shard'"),
    "processes of inference": ("matrix: {task: [inference], parallel.shard: [2]}\n", "7:46", "'parallel.shard' has no effect on task inference"),
    "seed 2**32": ("matrix: {seed: [4294967296]}\n", "7:17", "must be less than 4294967296"),
    "seeds 0, 0": ("matrix: {attention: [auto], seed: [0, 0]}\n", "7:39", "remove one of the two (the first is at s.yaml:7:36)"),
    "equal rates": ("matrix: {train.learning_rate: [1e-3, 0.001]}\n", "7:38", "the same run as an earlier cell"),
    "included twice": ("matrix: {seed: [0, 1]}\ninclude: [{seed: 1}]\n", "8:12", "the first is at s.yaml:7:20"),
    "list in include": ("include: [{seed: [1, 2]}]\n", "7:12", "must be a whole number, got [1, 2]"),
    "a million cells": (f"matrix: {{seed: {[*range(1000)]}, train.steps: {[*range(1, 1001)]}}}\n", "7:1", "1,000,000 cells; the limit is 100,000"),
    "uneven zip": ("zip: [{seed: [0, 1], train.steps: [3]}]\n", "7:7", "unequal length: seed 2, train.steps 1"),
    "empty zip": ("zip: [{}]\n", "7:7", "at least 1 item"),
    "axis twice": ("matrix: {seed: [0]}\nzip: [{seed: [1]}]\n", "8:8", "'seed' is already an axis"),
    "everything excluded": ("matrix: {seed: [0, 1]}\nexclude: [{seed: [0, 1]}]\n", "8:1", "removes every cell"),
    "excluded factor": ("matrix: {seed: [0]}\nexclude: [{sede: 0}]\n", "8:12", "'sede' is not a factor of this study (did you mean 'seed'"),
    "excluded value": ("matrix: {seed: [0, 1]}\nexclude: [{seed: 3}]\n", "8:12", "the values of seed are 0, 1"),
    "text for 1": ("matrix: {seed: [0, 1]}\nrules: [{where: {seed: '1'}, expect: failed}]\n", "8:18", "matches no cell: the values of seed are 0, 1, got '1': leave out the quotes"),
    "text for 1 in a list": ("matrix: {seed: [0, 1]}\nrules: [{where: {seed: [0, '1']}, expect: failed}]\n", "8:28", "the values of seed are 0, 1, got '1': leave out the quotes"),
    "true in a list": ("matrix: {seed: [0, 1]}\nexclude: [{seed: [0, true]}]\n", "8:22", "the values of seed are 0, 1, got true"),
    "listed number that no cell has": ("matrix: {seed: [0, 1]}\nrules: [{where: {seed: [0, 7]}, expect: failed}]\n", "8:28", "the values of seed are 0, 1, got 7"),
    "excluded list": ("matrix: {seed: [0, 1, 2]}\nexclude: [{seed: [0, 11]}]\n", "8:22", "the values of seed are 0, 1, 2, got 11"),
    "backend that no cell has": ("matrix: {attention: [auto, math]}\nrules: [{where: {attention: [math, flash]}, expect: failed}]\n", "8:36", "the values of attention are 'auto', 'math', got 'flash'"),
    "value of the base that no cell takes": ("matrix: {train.steps: [7, 8]}\nrules: [{where: {train.steps: [6, 7]}, expect: failed}]\n", "8:32", "the values of train.steps are 7, 8, got 6"),
    "value of another scale": ("matrix: {seed: [0, 1]}\nscales: {full: {matrix: {seed: [5]}}, laptop: {rules: [{where: {seed: [0, 5]}, expect: failed}]}}\n", "8:75", "the values of seed are 0, 1, got 5"),
    "true for 1": ("matrix: {seed: [0, 1]}\nrules: [{where: {seed: true}, expect: failed}]\n", "8:18", "matches no cell"),
    "rule without effect": (RULE % "set: {}", "8:9", "this rule has no effect: give it `set`, `resources`, `expect` or `label`"),
    "blank label": (RULE % "label: ' '", "8:28", "a label is one line of at most 60 characters, without spaces around it"),
    "long label": (RULE % f"label: {'x' * 61}", "8:28", "a label is one line of at most 60 characters"),
    "label of two lines": (RULE % 'label: "a\\nb"', "8:28", "a label is one line"),
    "number as label": (RULE % "label: 3", "8:28", "'label' must be text"),
    "label of two groups": ("matrix: {attention: [auto, tiled, math], seed: [0, 1]}\nrules: [{where: {seed: [0, 1]}, label: x}]\n", "8:33", "'x' would be the label of 3 groups: tell them apart in `where`, by attention"),
    "label that looks like another": ("matrix: {attention: [auto, math]}\nrules: [{where: {attention: auto}, label: \u00e9}, {where: {attention: math}, label: e\u0301}]\n", "8:36", "'\u00e9' would be the label of 2 groups"),
    "label of a part of a group": ("matrix: {attention: [auto, tiled], seed: [0, 1, 2]}\nrules: [{where: {seed: 0}, label: alpha}]\n", "8:28", "'alpha' would be the label of seed 0 but not of seed 1, 2 of the same group, and a label names a group: leave `seed` out of `where`"),
    "two labels in a group": ("matrix: {seed: [0, 1]}\nrules: [{where: {seed: 0}, label: a}, {where: {seed: 1}, label: b}]\n", "8:28", "'a' would be the label of seed 0 but not of seed 1 of the same group"),
    "label of another value": ("matrix: {train.learning_rate: [1e-3, 3e-3]}\nrules: [{where: {train.learning_rate: 1e-3}, label: learning_rate=3e-3}]\n", "8:46", "'learning_rate=3e-3' is not true of this group, which has learning_rate=0.001"),
    "label of another group": ("matrix: {attention: [auto, tiled], train.learning_rate: [1e-3, 3e-3]}\nrules: [{where: {attention: auto, train.learning_rate: 1e-3}, label: 'tiled, learning_rate=0.001'}]\n", "8:63", "'tiled, learning_rate=0.001' is what another group is called by its factors; give this one another label"),
    "label of another backend": ("matrix: {attention: [auto, tiled]}\nrules: [{where: {attention: tiled}, label: auto}]\n", "8:37", "'auto' names a different backend than this group's, tiled"),
    "unknown outcome in a list": (RULE % "expect: [completed, om_gpu]", "8:48", "'expect' must be 'completed', 'oom_gpu', "),
    "because alone": (RULE % "set: {train.steps: 2}, because: x", "8:9", "`because` says why an outcome is expected"),
    "rule sets a factor": (RULE % "set: {seed: 1}", "8:34", "rules cannot change it"),
    "unknown outcome": (RULE % "expect: oom", "8:28", "'oom_gpu', 'oom_host'"),
    "memory without unit": (RULE % "resources: {memory: 8}", "8:40", "such as 512MiB or 3GiB, got '8'"),
    "endless time": (RULE % f"resources: {{time_limit: {'9' * 20}:00:00}}", "8:40", "such as 0:30:00"),
    "zip of a scale": ("zip: [{seed: [0]}]\nscales: {full: {zip: [{model.dim: [32]}]}}\n", "8:23", "no group of `zip` has exactly these axes (its groups: seed)"),
    "uneven zip of a scale": ("zip: [{seed: [0], model.dim: [32]}]\nscales: {full: {zip: [{seed: [0, 1], model.dim: [32]}]}}\n", "8:23", "axes of unequal length: seed 2, model.dim 1"),
    "setting of a scale": ("scales: {full: {train.steps: 3}}\n", "7:17", "a setting that this scale changes belongs under its `set`"),
    "setting of a rule": ("rules: [{where: {seed: 0}, train.steps: 3}]\n", "7:28", "a setting that this rule changes belongs under its `set`"),
    "resource of a rule": ("rules: [{where: {seed: 0}, memory: 3GiB}]\n", "7:28", "'memory' belongs under its `resources`"),
    "base of a scale": ("scales: {full: {base: {train.steps: 3}}}\n", "7:17", "belongs under its `set`"),
    "key of a profile": ("time_limit: 1:00:00\n", "7:1", "'time_limit' belongs in a profile, which --profile names"),
    "axis of a scale": ("scales: {full: {matrix: {seed: [0]}}}\n", "7:26", "is not an axis of `matrix` (there are none yet)"),
    "baseline of nothing": ("baseline:\n", "7:1", "'baseline' has no value: write one, or leave the key out"),
    "budget without a limit": ("budget:\n", "7:1", "'budget' has no value"),
    "scale that would unset": ("repeats: 3\nscales: {full: {repeats: null}}\n", "8:17", "'repeats' has no value"),
    "number as scale": ("scales: {1: {}}\n", "7:10", "a key must be a string"),
    "budget of nothing": ("budget: {gpu_hours: 0}\n", "7:10", "must be greater than 0"),
    "budget as text": ("budget: {gpu_hours: '3'}\n", "7:10", "must be a number: write 3, got '3'"),
}  # fmt: skip
STUDIES = {**FILES, **{name: (TINY + text, *rest) for name, (text, *rest) in ADDED.items()}}


@pytest.mark.parametrize("case", STUDIES)
def test_a_bad_study_is_refused_with_its_place_and_line(cli, root, tmp_path, case):
    text, place, message = STUDIES[case]
    (tmp_path / "s.yaml").write_bytes(text if isinstance(text, bytes) else text.encode())
    code, out, err = cli("expand", "s.yaml")
    assert code == 2
    assert f"s.yaml:{place}" in err
    assert message in err
    assert "Traceback" not in err
    assert "must be None" not in err
    assert out == ""
    assert not root.exists()


@pytest.mark.parametrize("verb", ["expand", "launch"])
def test_cells_whose_processes_the_profile_cannot_give_are_named(cli, root, tmp_path, verb):
    (tmp_path / "c.yaml").write_text("executor: slurm\nprocesses_per_node: 2\nslurm: {}\n")
    axes = "matrix: {parallel.shard: [1, 2, 3], parallel.context: [1, 2], train.batch_size: [6]}\n"
    (tmp_path / "s.yaml").write_text(TINY + axes)
    code, out, err = cli(verb, "s.yaml", "--profile", "c.yaml")
    assert (code, out) == (2, "")
    message = "profile c: 3 processes do not divide evenly over 2 nodes, since `processes_per_node` is 2"
    assert f"s.yaml:7:33: {message}: use 2 or 4" in err
    assert err.count("s.yaml:") == 1, "six processes fill three nodes"
    assert not root.exists()


def test_a_scale_that_only_the_profile_asks_for_is_said_to_be_the_profiles(cli, tmp_path):
    (tmp_path / "s.yaml").write_text(TINY + "scales: {night: {set: {train.steps: 9}}}\n")
    for verb in ("launch", "expand"):
        code, out, err = cli(verb, "s.yaml", "--profile", "local")
        assert (code, out) == (2, "")
        message = "profile local asks for scale 'laptop', which this study lacks (valid: full, night)"
        assert f"{message}; choose one with --scale" in err


def test_a_key_that_a_profile_lacks_is_said_once_and_in_the_profile(cli, root, tmp_path):
    (tmp_path / "c.yaml").write_text("executor: slurm\ncpus: 2\nslurm: {}\n")
    (tmp_path / "s.yaml").write_text(TINY + "matrix: {parallel.shard: [1, 2], parallel.context: [1, 2]}\n")
    code, out, err = cli("launch", "s.yaml", "--profile", "c.yaml")
    assert (code, out) == (2, "")
    assert err.count("processes_per_node") == 1
    assert "c.yaml:1:1: runs of up to 4 processes: set `processes_per_node`" in err
    assert not root.exists()
    (tmp_path / "s.yaml").write_text(TINY.replace("cpu", "cuda") + "matrix: {parallel.shard: [1, 2]}\n")
    _, _, err = cli("launch", "s.yaml", "--profile", "c.yaml")
    assert "runs of up to 2 processes: set `gpus: 1` and `gpus_per_node`\n" in err
    for more, keys in (
        ("processes_per_node: 4", "`gpus: 1` and `gpus_per_node` in place of `processes_per_node`"),
        ("gpus: 0\ngpus_per_node: 4", "`gpus: 1`"),
    ):
        (tmp_path / "c.yaml").write_text(f"executor: slurm\ncpus: 2\nslurm: {{}}\n{more}\n")
        _, _, err = cli("launch", "s.yaml", "--profile", "c.yaml")
        assert f"runs of up to 2 processes: set {keys}\n" in err


def test_processes_on_gpus_need_a_profile_that_has_some(cli, tmp_path):
    (tmp_path / "s.yaml").write_text(TINY.replace("cpu", "cuda") + "matrix: {parallel.shard: [2]}\n")
    code, out, err = cli("expand", "s.yaml", "--profile", "local")
    assert (code, out) == (2, "")
    assert "s.yaml:7:27: profile local: 2 processes need a GPU each, but `gpus` is 0: set it to 1" in err
    assert cli("expand", "s.yaml").code == 0, "nobody said where it is to run"


# These are found only when the data is looked at, which `expand` does not do.
WITH_DATA = {
    "missing data": ("title: x\nbase: {device: cuda, data: {path: none.parquet}}\n", "2:29", "runner data"),
    "corrupt data": ("title: x\nbase: {data: {path: bad.parquet}}\n", "2:15", "not a Parquet file"),
    "truncated data": ("title: x\nbase: {data: {path: cut.parquet}}\n", "2:15", "not a Parquet file"),
    "no such column": (
        "title: x\nbase:\n  data:\n    path: text.parquet\n    text_column: txt\n",
        "5:5",
        "did you mean 'text'",
    ),
    "column of numbers": (
        "title: x\nbase:\n  data:\n    path: numbers.parquet\n    text_column: n\n",
        "5:5",
        "not text",
    ),
    "no rows": ("title: x\nbase: {data: {path: empty.parquet}}\n", "2:15", "no rows"),
    "missing tokenizer": (
        "title: x\nbase: {data: {path: text.parquet, tokenizer: ./no/such}}\n",
        "2:35",
        "tokenizer",
    ),
    "small vocabulary": (
        "title: x\nbase: {data: {path: text.parquet}, model.vocab_size: 99}\n",
        "2:36",
        "set model.vocab_size to 258 or more",
    ),
}


@pytest.fixture
def data_files(study, tmp_path, corpus):
    import pyarrow as pa
    import pyarrow.parquet as pq

    study()
    (tmp_path / "bad.parquet").write_bytes(b"no parquet " * 100)
    (tmp_path / "cut.parquet").write_bytes(corpus.read_bytes()[:-100])
    pq.write_table(pa.table({"n": [1, 2]}), tmp_path / "numbers.parquet")
    pq.write_table(pa.table({"text": pa.array([], pa.string())}), tmp_path / "empty.parquet")


@pytest.mark.parametrize("case", WITH_DATA)
def test_bad_data_is_refused_at_its_setting_and_nothing_is_started(cli, root, tmp_path, data_files, case):
    text, place, message = WITH_DATA[case]
    (tmp_path / "bad.yaml").write_text(text)
    code, out, err = cli("launch", "bad.yaml")
    assert code == 2
    assert f"bad.yaml:{place}: " in err
    assert message in err
    assert "Traceback" not in err
    assert out == ""
    assert not root.exists(), "nothing was planned, claimed or started"


def test_an_error_shows_its_line_with_a_caret_under_the_place(cli, tmp_path):
    (tmp_path / "s.yaml").write_text("title: 日本語 and a tab:\there\nbase: {data: {pfad: x}}\n")
    assert cli("expand", "s.yaml").err.splitlines()[1:] == [
        "  1 | title: 日本語 and a tab: here",
        "    |                        ^",
    ]


def test_a_long_line_is_shown_around_the_place(cli, tmp_path):
    (tmp_path / "s.yaml").write_text(TINY + f"matrix: {{seed: [{', '.join(map(str, range(500)))}, x]}}\n")
    _, line, caret = cli("expand", "s.yaml").err.splitlines()
    assert len(line) < 140
    assert line[caret.index("^")] == "x"


def test_only_the_first_of_many_errors_are_shown(cli, tmp_path):
    (tmp_path / "s.yaml").write_text(TINY + f"matrix: {{seed: {[*range(-50, 0)]}}}\n")
    stderr = cli("expand", "s.yaml").err
    assert stderr.count("'seed' must be greater than or equal to 0") == 20
    assert stderr.endswith("and 30 more\n")


PIECES = [
    "null", "true", "[]", "{}", '""', "-1", "1e999", ".nan", "[[1]]", "{a: 1}", "- ", "\t", ": ", "\n", "&a ", "*a",
    "!!bool ", "<<: ", "? ", "|", ">", '"', "'", "#", "---", "%", "@", "9" * 30, "\u202e", "train", "seed: ", ",", "}", "]", "=",
]  # fmt: skip
EDIT = st.tuples(
    st.integers(0, 10**6), st.sampled_from(["replace", "remove", "insert"]), st.sampled_from(PIECES)
)


@settings(max_examples=100, deadline=None, derandomize=True)
@given(st.lists(EDIT, min_size=1, max_size=3))
def test_a_study_with_any_slips_of_the_keyboard_is_expanded_or_refused(tmp_path_factory, edits):
    """Nothing else is raised, and no message speaks the language of the libraries below."""
    words = re.findall(
        r"\w+|\W", STUDY + "rules: [{where: {seed: 1}, set: {train: {steps: 9}}, expect: failed}]\n"
    )
    for place, action, piece in edits:
        at = place % len(words)
        words[at : at + (action != "insert")] = [] if action == "remove" else [piece]
    path = tmp_path_factory.mktemp("study") / "s.yaml"
    path.write_text("".join(words))
    try:
        expand(read_study(path))
    except UserError as error:
        assert not re.search(
            r"pydantic|ruamel|NoneType|Dictionary|Input should|'<", str(error).splitlines()[0]
        )
