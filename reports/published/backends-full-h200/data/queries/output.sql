SELECT * FROM output WHERE study = 'backends' ORDER BY run_id, attempt, stream DESC
