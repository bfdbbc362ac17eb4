SELECT * FROM output WHERE study = 'scaling' ORDER BY run_id, attempt, stream DESC
