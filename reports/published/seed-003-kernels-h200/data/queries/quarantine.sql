SELECT path, reason FROM quarantine WHERE study = 'seed-003-kernels' ORDER BY path
