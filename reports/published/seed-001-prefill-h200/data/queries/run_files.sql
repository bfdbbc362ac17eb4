SELECT run_id, path, size_bytes, sha256, missing_since FROM files
WHERE study = 'seed-001-prefill' AND run_id IN ('23ce75c5d243', '694da560d5d2', '28467cf5eb4f', '4dc9f26d2f2f', '8d1933f72028', 'ee8e0b1ce94d') ORDER BY path
