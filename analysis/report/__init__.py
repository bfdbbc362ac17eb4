"""Report pages: what they say, in words, tables and figures. Nothing here changes the database or draws."""
