SELECT * FROM output WHERE study = 'inference' ORDER BY run_id, attempt, stream DESC
