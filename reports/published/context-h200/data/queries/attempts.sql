SELECT * FROM attempts WHERE study = 'scaling' ORDER BY run_id, attempt
