SELECT * FROM output WHERE study = 'seed-003-frontier' ORDER BY run_id, attempt, stream DESC
