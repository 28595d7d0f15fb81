"""Evaluating language models in practice: likelihood, generation, statistics, tasks and runs."""
