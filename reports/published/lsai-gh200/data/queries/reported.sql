SELECT * FROM reported WHERE study = 'lsai' ORDER BY place, label, entry
