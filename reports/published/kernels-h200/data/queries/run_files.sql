SELECT run_id, path, size_bytes, sha256, missing_since FROM files
WHERE study = 'kernels' AND run_id IN ('fef9575da661', 'a0ebab83797f', '7f9a91b776ec', '99af93b559b7', '73f31450fc6c', 'e061b85a2563', '623885cd78ce', '23f5c89c3d4e', '2e3fdeb2f73d', '36d55c129f8a', '2504bb82654d', '43bcbbb58a36', 'ff854bbfe17d', '1b05e671eff0', '93c8cc549c19', '79291cc57fa0', 'cd3cc0759ba1') ORDER BY path
