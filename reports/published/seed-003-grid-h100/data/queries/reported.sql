SELECT * FROM reported WHERE study = 'seed-003-grid' ORDER BY place, label, entry
