SELECT * FROM reported WHERE study = 'kernels' ORDER BY place, label, entry
