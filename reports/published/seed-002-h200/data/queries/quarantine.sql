SELECT path, reason FROM quarantine WHERE study = 'seed-002' ORDER BY path
