"""What a report says about single runs: their pages, and the last lines of their output."""
