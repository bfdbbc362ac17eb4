"""What a report says about single runs: their pages, and the end of what they printed."""
