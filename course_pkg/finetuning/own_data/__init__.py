"""Fine-tuning an adapter on your own file: what `course finetune` does around the trainer."""

from course_pkg.common.errors import CourseError


class FinetuneError(CourseError, ValueError):
    """A data file, a setting or an output folder can't be used; the message says what to do."""
