"""Assignment `lora-math`: counting, computing, merging and injecting LoRA."""
