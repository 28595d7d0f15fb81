"""A run of the grader: each submission in its sandbox, all of a class side by side, shown live."""
