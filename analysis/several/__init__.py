"""Pages about several studies: a comparison of two, and an index of reports. Nothing here draws a chart."""
