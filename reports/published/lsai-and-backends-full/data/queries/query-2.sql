SELECT * FROM runs WHERE study = 'backends' ORDER BY place, seed, repeat, run_id
