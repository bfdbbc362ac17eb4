SELECT * FROM attempts WHERE study = 'speed' ORDER BY run_id, attempt
