SELECT path, reason FROM quarantine WHERE study = 'scaling' ORDER BY path
