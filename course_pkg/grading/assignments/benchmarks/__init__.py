"""Checks of the assignment `benchmarks`: programs, pairwise verdicts, pairs, overlap, ranks."""
