"""nbgrader's configuration: sources are in solutions/, what students get in exercises/.

Every nbgrader command works from this folder. Submissions go to
submitted/<student>/<assignment>/<assignment>.ipynb.
"""

from course_pkg.grading.classroom.feedback.mathjax import use_local_mathjax
from course_pkg.grading.questions.time_limits import crowding

c = get_config()  # noqa: F821 (nbgrader provides it)

c.CourseDirectory.course_id = "llm-course"
c.CourseDirectory.source_directory = "solutions"
c.CourseDirectory.release_directory = "exercises"

# A cell may compile, load a model or run many cases; the default of 30 s is for quicker work. On a
# machine with more to do than it has processors, it may take longer by as much.
c.ExecutePreprocessor.timeout_func = lambda cell: int(300 * crowding())

# Formulas in feedback and in formgrader need no network.
use_local_mathjax(c)
