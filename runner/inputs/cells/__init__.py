"""Lists, selects, checks and orders cells: matrix, options, filters, baseline, order. It resolves none."""
