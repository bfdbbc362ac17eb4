SELECT run_id, path, size_bytes, sha256, missing_since FROM files
WHERE study = 'kernels' AND run_id IN ('28772b786fa4', 'a42161666e76', '88735d95fe8f', '7eb0ba750447', '25674a1756d0', '0b3d4a693f93', '0a3135552b7d', 'ee38f62ae9e0', '7d973e783fd0', '189dc91f52d5', 'ef90db079d7b', '7da4da9c54a0') ORDER BY path
