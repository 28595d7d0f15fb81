"""Page: evaluation/code-benchmarks."""
