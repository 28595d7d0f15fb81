"""The grader of a class: submissions in, results, feedback and nbgrader's gradebook out.

`runs` grades a class. It runs each submission with `execution` on this machine, or with `cluster`
on others. Nothing below this package imports it.
"""
