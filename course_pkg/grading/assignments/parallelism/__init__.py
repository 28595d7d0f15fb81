"""Checks of the assignment `parallelism`: rings, shards, ZeRO, and the schedules of a pipeline."""
