SELECT run_id, differs FROM removed_runs WHERE study = 'backends' ORDER BY run_id
