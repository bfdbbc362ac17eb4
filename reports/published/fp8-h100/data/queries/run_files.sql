SELECT run_id, path, size_bytes, sha256, missing_since FROM files
WHERE study = 'fp8' AND run_id IN ('6ed85dae3d32', 'da455ed2bc94') ORDER BY path
