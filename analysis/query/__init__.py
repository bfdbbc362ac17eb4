"""Questions to the database and their answers: SQL and formats. Writes no database and draws nothing."""
