SELECT path, reason FROM quarantine WHERE study = 'seed-003-frontier' ORDER BY path
