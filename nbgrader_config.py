"""nbgrader's configuration: sources are in solutions/, what students get in exercises/.

Every nbgrader command works from this folder. Submissions go to
submitted/<student>/<assignment>/<assignment>.ipynb.
"""

from course_pkg.classroom.feedback.mathjax import use_local_mathjax

c = get_config()  # noqa: F821 (nbgrader provides it)

c.CourseDirectory.course_id = "llm-course"
c.CourseDirectory.source_directory = "solutions"
c.CourseDirectory.release_directory = "exercises"

# A cell may compile, load a model or run many cases; the default of 30 s is for quicker work.
c.ExecutePreprocessor.timeout = 300

# Formulas in feedback and in formgrader need no network.
use_local_mathjax(c)
