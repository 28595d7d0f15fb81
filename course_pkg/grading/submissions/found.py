"""What a layout gives for one person: where the files are, and what the names say about whose.

Chapter: appendix/for-instructors.
"""

from dataclasses import dataclass

from .folders import Parts
from .roster import Person


@dataclass(frozen=True)
class Found:
    """One person's submission, before it has a student's id.

    name: the id, full name or short name that the source gives. places: name and path of each
    file, or "" and the path of one folder of files. exact: whether the notebook must have the
    assignment's name. lms_id: the person's number in Moodle or Canvas. late: whether Canvas says
    so. skipped: why this is nobody's submission. wrong: why it can't be graded. is_id: whether the
    name may be an id, as in a layout of your own.
    """

    name: str
    path: Parts
    places: tuple[tuple[str, Parts], ...]
    exact: bool = False
    lms_id: str = ""
    late: bool = False
    skipped: str | None = None
    wrong: str | None = None
    is_id: bool = False

    @property
    def person(self) -> Person:
        """What the source says about the person. The name of a file or folder may be an id."""
        return Person(self.name if self.is_id else "", self.name, lms_id=self.lms_id)
