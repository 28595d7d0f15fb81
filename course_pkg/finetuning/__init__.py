"""Supervised fine-tuning: prompts, masks, batches and the training loop.

Chapter: finetuning/sft.
"""
