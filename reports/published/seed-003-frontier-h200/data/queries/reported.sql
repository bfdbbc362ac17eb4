SELECT * FROM reported WHERE study = 'seed-003-frontier' ORDER BY place, label, entry
