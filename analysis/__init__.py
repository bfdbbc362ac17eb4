"""Run folders into DuckDB, SQL over it, and report pages. Imports model, never runner."""
