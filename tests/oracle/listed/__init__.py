"""All kinds of texts and cells that a page can show, but for those of `kinds` and `titles`: every file here has some."""
