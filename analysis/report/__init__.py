"""Report pages: facts, tables and figures as HTML. Nothing here draws a chart or writes to the database."""
