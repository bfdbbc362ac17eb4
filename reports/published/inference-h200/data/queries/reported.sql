SELECT * FROM reported WHERE study = 'inference' ORDER BY place, label, entry
