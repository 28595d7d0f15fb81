"""Grading: questions that draw fresh cases for each student, and verdicts that no answer can reach.

`check` is the student's side; `checker` has the answer key. Nothing below this package imports it.
"""
