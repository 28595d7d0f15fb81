"""Supervised fine-tuning: prompts, masks, batches and the training loop."""
