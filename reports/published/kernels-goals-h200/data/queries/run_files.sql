SELECT run_id, path, size_bytes, sha256, missing_since FROM files
WHERE study = 'kernels' AND run_id IN ('37815d4ef197', '6cafdb5bb6bd', '8b512d07ab60', '013d24874fd6', '81b502f4d8a7', '1ee4e7254e2f', 'e760f3bd94ff', 'b7476cabe083', '9e5404cfe3b8', '20a863bc1391', '8593fa4e10d7', '599366c99e32') ORDER BY path
