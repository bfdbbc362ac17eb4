SELECT path, reason FROM quarantine WHERE study = 'backends' ORDER BY path
