"""FlashAttention in plain Triton, for every GPU that Triton compiles for, and for its interpreter on a CPU.

Importing this package imports neither torch nor triton. `model/attention/tiled.py` is the same algorithm in plain
PyTorch; read that first. Papers: Dao 2023, "FlashAttention-2" (arXiv:2307.08691), below FA2; Shah et al. 2024,
"FlashAttention-3" (arXiv:2407.08608), below FA3.

Shapes: B batch, T queries, U keys, H query heads, K key/value heads, G = H / K query heads that share a key head, D
head dim. The rows of a tile are the queries of one whole group: R = T * G, and row r is query r // G of the group's head
r % G (FA3's repository calls this packed GQA). So a tile of keys is read once for G heads, dK and dV are summed over the
group in registers, and a few queries with many heads, as in decoding, still fill a tile.

Query t stands at key t + offset: under a causal mask it sees the keys up to that one. The offset may be negative; a
query that sees no key has an output of zero.

Dropout: Philox gives 32 bits for a seed, a sample and head, a query, and eight keys, four of them a key, as in `tiled`: one
seed drops the same weights there and here, in every pass and in tiles of any size.

Logarithms and exponentials have base 2, as the hardware's instructions do: exp(x) = exp2(x log2(e)), with log2(e)
folded into the scale.
"""

HEAD_DIMS = (16, 32, 64, 128, 256)  # tiles have a power of two of columns
