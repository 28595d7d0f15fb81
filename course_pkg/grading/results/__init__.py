"""What is kept of graded submissions: states, signed records, scores, and the course's secret."""
