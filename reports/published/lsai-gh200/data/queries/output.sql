SELECT * FROM output WHERE study = 'lsai' ORDER BY run_id, attempt, stream DESC
