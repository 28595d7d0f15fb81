"""Question sets and options from a concept graph."""

from itertools import combinations

import pytest

from course_pkg.studies.domains.concept_graph import Edge, five_options, question_sets

PLACES = ("shelf", "desk", "bag", "library", "shop")
EDGES = [Edge("book", "AtLocation", place) for place in PLACES]


def test_every_three_targets_of_one_source_and_one_clear_relation_are_a_set():
    found = question_sets(
        [*EDGES, Edge("book", "UsedFor", "reading"), Edge("cup", "AtLocation", "desk")]
    )
    assert [each.targets for each in found] == list(combinations(PLACES, 3))
    assert {(each.source, each.relation) for each in found} == {("book", "AtLocation")}
    assert question_sets([Edge("book", "RelatedTo", place) for place in PLACES]) == []
    assert question_sets(EDGES[:2] * 3) == []


def test_options_are_the_targets_one_from_the_graph_and_one_invented():
    [first, *_] = question_sets(EDGES)
    seen = set()
    for seed in range(20):
        options = five_options(first, "roof", EDGES, seed)
        assert len(set(options)) == 5
        assert {*first.targets, "roof"} < set(options)
        seen |= set(options) - {*first.targets, "roof"}
    assert seen == {"library", "shop"}  # the concepts of the graph that are no target
    assert five_options(first, "roof", EDGES, 3) == five_options(first, "roof", EDGES, 3)


def test_options_that_may_be_right_or_are_missing_are_refused():
    [first, *_] = question_sets(EDGES)
    with pytest.raises(ValueError, match="'shop' is a target of 'book'"):
        five_options(first, "shop", EDGES, 0)
    with pytest.raises(ValueError, match="no fourth target"):
        five_options(first, "roof", EDGES[:3], 0)
