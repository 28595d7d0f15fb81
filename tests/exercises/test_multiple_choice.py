"""`multiple-choice`: no case is so near to an edge that a right answer could be judged wrong."""

from random import Random

from course_pkg.grading.assignments.multiple_choice import cases
from course_pkg.grading.assignments.multiple_choice.student import encode
from course_pkg.grading.questions.answer_key import answer_key
from course_pkg.grading.questions.draws import draw_variant

STUDENTS = ("", *(f"student-{i}" for i in range(200)))
DRAWS = [(Random(seed), size) for seed in range(20) for size in range(3)]


def test_by_hand_no_confidence_is_near_an_edge_and_the_numbers_differ_from_those_of_mistakes():
    for student in STUDENTS:
        case = draw_variant(answer_key("multiple-choice"), "by-hand", student)
        confidence = case["confidence"]
        assert all(abs(c - edge) > 0.015 for c in confidence for edge in (0.25, 0.5, 0.75)), student
        assert 1.0 in confidence, student
        bins = [[c for c in confidence if i < 4 * c <= i + 1] for i in range(4)]
        assert sorted(map(len, bins)) == [0, 1, 2, 2], student
        errors = cases.by_hand_expected(case)
        assert abs(errors["alone"] - errors["passages"]) > 0.09 * errors["alone"], student


def test_options_are_joined_with_the_context_only_where_that_is_judged():
    for rng, size in DRAWS:
        for kind in ("apart", "joined", "spaces"):
            inputs = cases.draw_texts(rng, size, kind)
            bare = len(inputs["context"].rstrip())
            starts = set()  # the first token of each option that has a character of it
            for option in inputs["options"]:
                tokens = encode(inputs["context"] + option, inputs["vocabulary"])
                ends = [sum(map(len, tokens[: i + 1])) for i in range(len(tokens))]
                starts.add(next(i for i, end in enumerate(ends) if end > bare))
            assert (len(starts) > 1) == (kind == "joined"), inputs
            assert cases.boundary_expected(inputs)["start"] == min(starts) > 0, inputs


def test_a_confidence_is_on_an_edge_only_where_that_is_judged_and_there_floats_hold_it():
    for rng, size in DRAWS:
        for kind in ("filled", "empty"):
            inputs = cases.draw_answers(rng, size, kind)
            places = [c * inputs["bins"] for c in inputs["confidences"]]
            assert all(0.1 < place % 1 < 0.9 for place in places), inputs
        edges = cases.draw_answers(rng, size, "edges")
        assert edges["bins"] in (2, 4), edges
        assert {0.0, 0.5, 1.0} <= set(edges["confidences"]), edges


def test_only_where_groups_are_judged_are_they_of_different_sizes():
    for rng, size in DRAWS:
        for related in (False, True):
            groups = cases.draw_runs(rng, size, related)["groups"]
            sizes = {groups.count(group) for group in groups}
            assert (len(sizes) > 1) == related, groups
