"""The checks of each assignment: `ask` beside the student, `trusted` beside the verdict."""
