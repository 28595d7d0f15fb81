"""Side-by-side measurements of course_pkg and the libraries that practitioners use.

`python -m benchmarks` runs them all, prints a table and writes benchmarks/results/.
"""
