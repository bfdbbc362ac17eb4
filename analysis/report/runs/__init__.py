"""What a report says of single runs: their pages, and the end of what they printed."""
