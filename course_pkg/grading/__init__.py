"""Grading: questions that draw fresh cases, and a verdict that an answer cannot reach.

The student's side is `check` (with each assignment's `ask` module); the trusted side is
`judge` (with each assignment's `trusted` module). Nothing below this package imports it.
"""
