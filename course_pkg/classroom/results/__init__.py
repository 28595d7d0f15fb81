"""The results that are kept: states, signed records, score statistics, and the course's secret."""
