SELECT * FROM attempts WHERE study = 'kernels' ORDER BY run_id, attempt
