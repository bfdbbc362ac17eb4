SELECT path, reason FROM quarantine WHERE study = 'prefill-fp8' ORDER BY path
