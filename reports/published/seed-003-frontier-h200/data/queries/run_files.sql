SELECT run_id, path, size_bytes, sha256, missing_since FROM files
WHERE study = 'seed-003-frontier' AND run_id IN ('9baba2a94e6a', '21cd5ae4397a', 'c608f505d770', '498a8f2ba8b8', 'd91b6326f9ea') ORDER BY path
