SELECT * FROM reported WHERE study = 'seed-002' ORDER BY place, label, entry
