"""Checks of the assignment `scheduling`: batches, a scheduler's step, feedback queues, figures."""
