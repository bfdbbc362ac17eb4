SELECT * FROM attempts WHERE study = 'seed-001-training' ORDER BY run_id, attempt
