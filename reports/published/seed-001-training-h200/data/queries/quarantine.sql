SELECT path, reason FROM quarantine WHERE study = 'seed-001-training' ORDER BY path
