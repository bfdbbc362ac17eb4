"""What a paper needs from a study: LaTeX tables, figures, numbers by name, methods and references."""
