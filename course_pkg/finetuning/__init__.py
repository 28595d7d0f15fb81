"""Supervised fine-tuning: the training loop and what feeds it. Chapter: adapters/lora."""
