SELECT run_id, differs FROM removed_runs WHERE study = 'seed-003-frontier' ORDER BY run_id
