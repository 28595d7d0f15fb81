"""Checks of the assignment `constrained`: automata over tokens, masks, and JSON."""
