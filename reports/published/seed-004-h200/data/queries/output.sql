SELECT * FROM output WHERE study = 'seed-004' ORDER BY run_id, attempt, stream DESC
