SELECT * FROM reported WHERE study = 'speed' ORDER BY place, label, entry
