SELECT run_id, differs FROM removed_runs WHERE study = 'speed' ORDER BY run_id
