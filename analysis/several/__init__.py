"""Pages about several studies: two of them compared, and an index over reports. Nothing here draws."""
