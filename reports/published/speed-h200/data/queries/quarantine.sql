SELECT path, reason FROM quarantine WHERE study = 'speed' ORDER BY path
