SELECT run_id, differs FROM removed_runs WHERE study = 'seed-003-grid' ORDER BY run_id
