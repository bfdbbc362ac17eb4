SELECT path, reason FROM quarantine WHERE study = 'fp8' ORDER BY path
