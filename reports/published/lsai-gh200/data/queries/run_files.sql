SELECT run_id, path, size_bytes, sha256, missing_since FROM files
WHERE study = 'lsai' AND run_id IN ('log-e666c8d74274', 'log-905cb8fae31f', 'log-5945a409e013', 'log-594f338243d4', 'log-3c631988f567') ORDER BY path
