"""Analysis: run folders into DuckDB, SQL out of it, and report pages. Imports model, never runner."""
