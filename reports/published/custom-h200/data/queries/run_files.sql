SELECT run_id, path, size_bytes, sha256, missing_since FROM files
WHERE study = 'backends' AND run_id IN ('9471c492a58e', '6d6095119613', '70d24108fcca', '2498456aa0cb', '8b9f43d7253a', '07f987da28d8', '58d8989827bd', 'ec27c0780529', '412e70bbe19b', '3fa060b66842') ORDER BY path
