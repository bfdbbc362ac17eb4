"""Times attention alone, backends side by side on one shape. It neither trains nor judges results."""
