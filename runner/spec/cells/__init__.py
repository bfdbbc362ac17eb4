"""Selects, checks and orders cells: options, filters, baseline, starting order. It expands nothing."""
