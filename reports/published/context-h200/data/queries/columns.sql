SELECT table_name, column_name, lower(data_type) AS type, comment FROM duckdb_columns()
WHERE table_name IN ('runs', if(EXISTS (FROM kernels WHERE study = 'scaling'), 'kernels', 'steps'))
  AND NOT internal AND database_name <> 'temp'
ORDER BY table_name, column_index
