SELECT * FROM attempts WHERE study = 'seed-004' ORDER BY run_id, attempt
