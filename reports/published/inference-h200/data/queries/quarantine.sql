SELECT path, reason FROM quarantine WHERE study = 'inference' ORDER BY path
