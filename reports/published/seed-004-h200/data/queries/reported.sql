SELECT * FROM reported WHERE study = 'seed-004' ORDER BY place, label, entry
