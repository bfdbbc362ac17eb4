SELECT * FROM output WHERE study = 'fp8' ORDER BY run_id, attempt, stream DESC
