SELECT * FROM reported WHERE study = 'seed-001-prefill' ORDER BY place, label, entry
