SELECT path, reason FROM quarantine WHERE study = 'kernels' ORDER BY path
