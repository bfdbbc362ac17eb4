SELECT * FROM runs WHERE study = 'lsai' ORDER BY place, seed, repeat, run_id
