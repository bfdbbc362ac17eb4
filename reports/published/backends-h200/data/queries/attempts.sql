SELECT * FROM attempts WHERE study = 'backends' ORDER BY run_id, attempt
