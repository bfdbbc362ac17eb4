SELECT * FROM attempts WHERE study = 'inference' ORDER BY run_id, attempt
