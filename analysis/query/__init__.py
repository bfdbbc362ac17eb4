"""Queries of the database and the formats of their answers. Nothing here writes to it or draws."""
