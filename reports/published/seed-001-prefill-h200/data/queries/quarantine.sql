SELECT path, reason FROM quarantine WHERE study = 'seed-001-prefill' ORDER BY path
