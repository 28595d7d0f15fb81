"""`paged-attention`: what its callers refuse."""

from random import Random

import pytest

from course_pkg.grading.assignments.paged_attention import cases, student
from course_pkg.grading.questions.calling import WrongUse


def test_an_attribute_of_another_type_is_named():
    def answer(pool, name, count):
        pool.free = None

    inputs = cases.allocate_table(Random(0), 0)
    with pytest.raises(WrongUse, match=r"a list in pool\.free, but None was given"):
        student.on_pool(answer, inputs)


def test_a_key_error_for_a_sequence_with_a_table_is_an_error():
    with pytest.raises(KeyError):
        student.free(lambda pool, name: {}[name], cases.free_alone(Random(0), 0))
