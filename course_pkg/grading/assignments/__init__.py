"""The checks of each assignment: `student.py` beside the student, `cases.py` beside the verdict."""

import os

# A worker of a cluster may have received checks that this package lacks: see contract.registry.
__path__ += [folder for folder in [os.environ.get("COURSE_CHECKS")] if folder]
