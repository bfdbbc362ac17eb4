SELECT * FROM reported WHERE study = 'seed-001-training' ORDER BY place, label, entry
