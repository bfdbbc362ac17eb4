SELECT run_id, differs FROM removed_runs WHERE study = 'seed-001-prefill' ORDER BY run_id
