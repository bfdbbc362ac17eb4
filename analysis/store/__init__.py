"""The database and how run folders and certificates get into it. No statistics and no HTML here."""
