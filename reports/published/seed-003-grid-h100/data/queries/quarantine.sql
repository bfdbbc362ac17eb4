SELECT path, reason FROM quarantine WHERE study = 'seed-003-grid' ORDER BY path
