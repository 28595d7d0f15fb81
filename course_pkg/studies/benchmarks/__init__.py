"""Page: evaluation/benchmarks."""
