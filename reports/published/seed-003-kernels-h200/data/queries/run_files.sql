SELECT run_id, path, size_bytes, sha256, missing_since FROM files
WHERE study = 'seed-003-kernels' AND run_id IN ('0568d0a88837', 'd2fb7c9d209f', '7d2d750c9b27', '3a6b3442cea2', 'a301e3f97f16', 'dbf72ee79680', '8db372408f28', '28b8710ff85f', '85bd812cdd73') ORDER BY path
