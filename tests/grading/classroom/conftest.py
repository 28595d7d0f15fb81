"""A course that nbgrader has released, and its gradebook."""

import shutil

import pytest

from course_pkg.grading.classroom.gradebook.gradebook import CourseGradebook
from tests.exercises.assignments import Course
from tests.grading.classroom.clusters import prepare
from tests.grading.classroom.gateways import Gateway
from tests.grading.classroom.recorded import ASSIGNMENT, ROOT


@pytest.fixture(scope="session")
def prepared(tmp_path_factory):
    """A course whose assignment nbgrader has released."""
    course = Course(tmp_path_factory.mktemp("released"))
    shutil.copytree(ROOT / "exercises", course.root / "exercises")
    with CourseGradebook(course.root) as book:
        book.ensure_assignment(ASSIGNMENT)
    return course.root


@pytest.fixture(scope="session")
def prepared_bleu(tmp_path_factory):
    """A course that has released another assignment, whose answers need no torch."""
    return prepare(tmp_path_factory.mktemp("bleu"))


@pytest.fixture
def course(prepared, tmp_path):
    """A copy of that course."""
    made = Course.__new__(Course)
    made.root = tmp_path / "course"
    shutil.copytree(prepared, made.root, symlinks=True)
    return made


@pytest.fixture
def book(course):
    with CourseGradebook(course.root) as book:
        yield book


@pytest.fixture
def gateway():
    """What a run on a cluster takes for its gateway: see `gateways.opened`."""
    return Gateway()
