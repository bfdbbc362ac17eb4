SELECT run_id, path, size_bytes, sha256, missing_since FROM files
WHERE study = 'seed-001-training' AND run_id IN ('c08d83f0335f', '0bece168d3bf', 'd1ad493b4ff8', '95c7c15123cf', '3eeb86b597a6', '9a8d9a8bc3aa') ORDER BY path
