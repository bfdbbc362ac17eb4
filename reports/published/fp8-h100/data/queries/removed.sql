SELECT run_id, differs FROM removed_runs WHERE study = 'fp8' ORDER BY run_id
