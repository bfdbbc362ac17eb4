SELECT run_id, differs FROM removed_runs WHERE study = 'kernels' ORDER BY run_id
