SELECT * FROM output WHERE study = 'seed-002' ORDER BY run_id, attempt, stream DESC
