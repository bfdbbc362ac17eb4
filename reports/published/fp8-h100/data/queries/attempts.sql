SELECT * FROM attempts WHERE study = 'fp8' ORDER BY run_id, attempt
