"""The database, filled from run folders and certificates. Nothing here asks it, draws or estimates."""
