"""Each assignment: `student.py` runs beside the student, `cases.py` beside the verdict."""

import os

# A cluster's worker may have received assignments that this package lacks: see the registry.
__path__ += [folder for folder in [os.environ.get("COURSE_ASSIGNMENTS")] if folder]
