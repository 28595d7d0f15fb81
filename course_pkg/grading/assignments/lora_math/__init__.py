"""Checks of the assignment `lora-math`: counting, computing, merging and injecting LoRA."""
