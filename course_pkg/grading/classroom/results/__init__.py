"""The results that are kept: signed records, scores, and the course's secret."""
