SELECT * FROM output WHERE study = 'seed-003-kernels' ORDER BY run_id, attempt, stream DESC
