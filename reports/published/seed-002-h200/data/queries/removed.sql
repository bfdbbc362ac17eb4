SELECT run_id, differs FROM removed_runs WHERE study = 'seed-002' ORDER BY run_id
