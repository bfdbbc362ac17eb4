SELECT * FROM reported WHERE study = 'fp8' ORDER BY place, label, entry
