SELECT run_id, differs FROM removed_runs WHERE study = 'inference' ORDER BY run_id
