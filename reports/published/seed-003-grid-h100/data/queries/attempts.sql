SELECT * FROM attempts WHERE study = 'seed-003-grid' ORDER BY run_id, attempt
