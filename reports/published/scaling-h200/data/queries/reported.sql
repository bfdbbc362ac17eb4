SELECT * FROM reported WHERE study = 'scaling' ORDER BY place, label, entry
