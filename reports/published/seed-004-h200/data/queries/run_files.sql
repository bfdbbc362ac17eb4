SELECT run_id, path, size_bytes, sha256, missing_since FROM files
WHERE study = 'seed-004' AND run_id IN ('1bcac3920e07', '8e4943a67632', '2940b858d1ea', '7da353ac2250', 'df28354c9455', 'bb2e496a184b', '3c178d3b2a19', '4bea3e572720', 'e6950c5c1a1a', 'ef09194e06f4', '3f74c0ae21c2', 'c8d4376f12aa', 'cdcc9a5c2986', '63f8b29a2f12', 'd1ea1a110555', 'f7db897ec083') ORDER BY path
