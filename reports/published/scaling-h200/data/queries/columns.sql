SELECT table_name, column_name, lower(data_type) AS type, comment FROM duckdb_columns()
WHERE table_name IN ('runs', CASE WHEN EXISTS (FROM kernels WHERE study = 'scaling') THEN 'kernels'
    WHEN EXISTS (FROM probes WHERE study = 'scaling') THEN 'probes' ELSE 'steps' END)
  AND NOT internal AND database_name <> 'temp'
ORDER BY table_name, column_index
