SELECT run_id, differs FROM removed_runs WHERE study = 'seed-004' ORDER BY run_id
