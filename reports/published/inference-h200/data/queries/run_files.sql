SELECT run_id, path, size_bytes, sha256, missing_since FROM files
WHERE study = 'inference' AND run_id IN ('ad2d7bb7ddc1', '1862f9059e92', 'fddb8172cc8d', '103465c679f7', 'cc815f1aab9a', '9196483d91b9', '64428101a05a', 'd06cfd30a399') ORDER BY path
