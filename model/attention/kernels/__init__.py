"""The project's own GPU kernels. Importing this package imports neither torch nor triton."""
