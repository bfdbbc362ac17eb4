SELECT * FROM output WHERE study = 'seed-003-grid' ORDER BY run_id, attempt, stream DESC
