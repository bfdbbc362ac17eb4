SELECT * FROM output WHERE study = 'kernels' ORDER BY run_id, attempt, stream DESC
