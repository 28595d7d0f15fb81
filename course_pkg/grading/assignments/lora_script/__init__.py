"""Checks of the assignment `lora-script`."""
