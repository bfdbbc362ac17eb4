SELECT path, reason FROM quarantine WHERE study = 'lsai' ORDER BY path
