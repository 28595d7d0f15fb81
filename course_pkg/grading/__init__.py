"""Grading: questions that draw fresh cases for each student, and verdicts that no answer can reach.

`check` is what a notebook calls; `questions` is what it checks and how it is judged;
`checker_process` holds the answer key while a submission runs; `assignments` has the questions.
Nothing below this package imports it.
"""
