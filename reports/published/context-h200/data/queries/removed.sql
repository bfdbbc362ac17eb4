SELECT run_id, differs FROM removed_runs WHERE study = 'scaling' ORDER BY run_id
