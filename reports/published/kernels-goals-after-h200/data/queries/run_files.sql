SELECT run_id, path, size_bytes, sha256, missing_since FROM files
WHERE study = 'kernels' AND run_id IN ('23b71ad9c3d8', '9b9bfb2654ca', '07ba6a2fa4b3', 'e35c8e3cb01d', '9a382413db9a', 'f59049bb6a09', '3e74b1224050', '72cc4616f562', '4b0d639f9efd', '1f74eff0c497', '0e21253350ea', '60d711429000') ORDER BY path
