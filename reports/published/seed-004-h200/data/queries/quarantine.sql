SELECT path, reason FROM quarantine WHERE study = 'seed-004' ORDER BY path
