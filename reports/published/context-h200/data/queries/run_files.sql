SELECT run_id, path, size_bytes, sha256, missing_since FROM files
WHERE study = 'scaling' AND run_id IN ('d0f267092d86') ORDER BY path
