SELECT run_id, path, size_bytes, sha256, missing_since FROM files
WHERE study = 'seed-003-frontier' AND run_id IN ('24199a692737', '1b1c53c750f5', 'cf19274346a5', '050bfcc8d6b2', '767871bb852d') ORDER BY path
