SELECT label, run_id, seed, repeat, gpus, peak_memory_bytes,
  peak_memory_bytes / 1024.0 ** 3 AS peak_memory_gib
FROM runs
WHERE study = 'speed' AND outcome = 'completed' AND peak_memory_bytes IS NOT NULL
ORDER BY place, seed, repeat, run_id
