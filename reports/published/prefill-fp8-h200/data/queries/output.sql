SELECT * FROM output WHERE study = 'prefill-fp8' ORDER BY run_id, attempt, stream DESC
