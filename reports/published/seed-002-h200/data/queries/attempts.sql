SELECT * FROM attempts WHERE study = 'seed-002' ORDER BY run_id, attempt
