SELECT * FROM attempts WHERE study = 'seed-003-frontier' ORDER BY run_id, attempt
