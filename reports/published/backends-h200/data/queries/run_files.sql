SELECT run_id, path, size_bytes, sha256, missing_since FROM files
WHERE study = 'backends' AND run_id IN ('445a3c30fd60', 'b5a67207016b', 'f215c259d0d0', 'dfa31f7046e4', '731591042599', '2947218655f5', '2f3f35c67b13', '28c48cdaa426', 'a379e22a2edb', '98b36769e6d5', '704bc17b8678', '147bfc5d64d7', 'da57451f464e', 'c53dc1a3bf2e', '8502199ff529', 'b9c981019daa') ORDER BY path
