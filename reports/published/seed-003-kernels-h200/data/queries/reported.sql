SELECT * FROM reported WHERE study = 'seed-003-kernels' ORDER BY place, label, entry
