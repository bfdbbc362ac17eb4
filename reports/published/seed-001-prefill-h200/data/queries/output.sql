SELECT * FROM output WHERE study = 'seed-001-prefill' ORDER BY run_id, attempt, stream DESC
