SELECT run_id, differs FROM removed_runs WHERE study = 'lsai' ORDER BY run_id
