"""Page: finetuning/instructions."""
