SELECT run_id, path, size_bytes, sha256, missing_since FROM files
WHERE study = 'prefill-fp8' AND run_id IN ('d48cf7b08462', 'a598d71bcd51', '2a3008891363', '18ca2c081530', '17510b23bee1', 'd2c70c8b4c4b') ORDER BY path
