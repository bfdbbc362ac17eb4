SELECT * FROM attempts WHERE study = 'lsai' ORDER BY run_id, attempt
