"""Checks of the assignment `peft-methods`: prefixes, DoRA, IA³, and what each method trains."""
