SELECT * FROM output WHERE study = 'seed-001-training' ORDER BY run_id, attempt, stream DESC
