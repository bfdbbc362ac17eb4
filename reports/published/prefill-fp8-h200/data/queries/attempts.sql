SELECT * FROM attempts WHERE study = 'prefill-fp8' ORDER BY run_id, attempt
