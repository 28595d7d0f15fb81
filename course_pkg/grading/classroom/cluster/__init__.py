"""Grading on a cluster: the submissions run on the workers of a Dask scheduler."""
