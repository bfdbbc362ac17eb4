"""What a text needs of a study: LaTeX tables, figures, numbers by name, methods and references."""
