SELECT * FROM attempts WHERE study = 'seed-001-prefill' ORDER BY run_id, attempt
