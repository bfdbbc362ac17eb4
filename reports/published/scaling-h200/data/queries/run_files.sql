SELECT run_id, path, size_bytes, sha256, missing_since FROM files
WHERE study = 'scaling' AND run_id IN ('01b6bfb12e81', 'd6b6f56d4796', 'f5228f981810', 'ee816dc259f6', '0811ac949759', '5d66492682e7', '92f13aa5a376', 'c8f9178fe918', '329d8e30da1f', '25b3845338bf') ORDER BY path
