"""Picks, checks and orders cells: options, filters, baseline, order of starting. It expands nothing."""
