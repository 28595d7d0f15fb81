import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from course_pkg.metrics.meteor import alignment
from course_pkg.metrics.meteor.alignment import (
    STAGES,
    best_alignment,
    count_chunks,
    match_candidates,
    most_matches,
)
from course_pkg.metrics.tokenizers import porter_stem
from course_pkg.metrics.wordnet import SynonymSets

WORDS = ["a", "the", "cat", "cats", "run", "runs", "running", "sprint"]
OWN = SynonymSets([{"run", "sprint"}, {"cat", "runs"}, {"the", "a", "cats"}])
sentences = st.lists(st.sampled_from(WORDS), max_size=6)


def every_alignment(candidates, i=0, used=frozenset()):
    """All ways to match words, as lists of (i, j, stage)."""
    if i == len(candidates):
        yield []
        return
    yield from every_alignment(candidates, i + 1, used)
    for j, stage in candidates[i]:
        if j not in used:
            for rest in every_alignment(candidates, i + 1, used | {j}):
                yield [(i, j, stage), *rest]


def value(matches, staged):
    """The key by which alignments are compared; the largest is best."""
    stages = [sum(stage == number for *_, stage in matches) for number in range(3)]
    chunks = count_chunks([(i, j) for i, j, _ in matches])
    distance = sum(abs(i - j) for i, j, _ in matches)
    head = stages if staged else [2 * stages[0] + stages[1] + stages[2]]
    return (*head, -chunks, -distance)


def triples(alignment):
    return [(m.hypothesis, m.reference, STAGES.index(m.stage)) for m in alignment.matches]


@given(sentences, sentences, st.booleans(), st.sampled_from([None, OWN]))
def test_no_alignment_is_better_than_the_one_found(hypothesis, reference, staged, synonyms):
    candidates = match_candidates(hypothesis, reference, True, synonyms)
    result = best_alignment(candidates, staged=staged)
    assert result.optimal
    best = max(value(matches, staged) for matches in every_alignment(candidates))
    assert value(triples(result), staged) == best


@given(sentences, sentences, st.booleans())
def test_a_beam_search_gives_a_valid_alignment_at_most_as_good(hypothesis, reference, staged):
    candidates = match_candidates(hypothesis, reference, True, OWN)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(alignment, "EXACT_STATES", 0)
        beam = best_alignment(candidates, staged=staged)
    assert not beam.optimal or not hypothesis
    matches = triples(beam)
    assert all((j, stage) in candidates[i] for i, j, stage in matches)
    assert len({i for i, _, _ in matches}) == len({j for _, j, _ in matches}) == len(matches)
    exact = triples(best_alignment(candidates, staged=staged))
    assert value(matches, staged) <= value(exact, staged)


@given(sentences, sentences)
def test_most_matches_equals_brute_force(hypothesis, reference):
    candidates = match_candidates(hypothesis, reference, True, OWN)
    assert most_matches(candidates) == max(map(len, every_alignment(candidates)))


def test_chunks_by_hand():
    assert count_chunks([]) == 0
    assert count_chunks([(0, 0), (1, 1), (2, 2)]) == 1
    assert count_chunks([(2, 0), (0, 1), (1, 2)]) == 2  # order of the list doesn't matter
    assert count_chunks([(0, 1), (1, 0)]) == 2  # neighbors, but in the other order
    assert count_chunks([(0, 0), (2, 1)]) == 2  # a gap in one text


def test_a_candidate_has_the_first_stage_that_matches_and_joint_may_replace_it():
    [options] = match_candidates(["runs"], ["runs", "running", "sprint", "tree"], True, OWN)
    assert options == [(0, 0), (1, 1)]
    [options] = match_candidates(["run"], ["runs", "sprint"], True, OWN)
    assert options == [(0, 1), (1, 2)]
    assert match_candidates(["run"], ["runs", "sprint"], False, None) == [[]]
    assert porter_stem("running") == "run"
    own = SynonymSets([{"car", "auto"}, {"car", "wagon"}])
    candidates = match_candidates(["car", "auto"], ["wagon", "car"], False, own)
    # If car matches car, auto and wagon are unmatched. The matches car-wagon and auto-car count
    # the same jointly, also form one chunk, and have distance 0.
    assert triples(best_alignment(candidates, staged=True)) == [(0, 1, 0)]
    assert triples(best_alignment(candidates, staged=False)) == [(0, 0, 2), (1, 1, 2)]


def zipf(length, seed):
    """Random words as frequent as in real text: the k-th most frequent has a weight of 1/k."""
    words = range(2000)
    shares = [1 / (k + 1) for k in words]
    return [f"w{k}" for k in random.Random(seed).choices(words, shares, k=length)]


@pytest.mark.slow
def test_a_thousand_words_get_as_many_matches_as_possible_and_are_not_marked_optimal():
    candidates = match_candidates(zipf(1000, 1), zipf(1000, 2), False)
    result = best_alignment(candidates)
    assert not result.optimal
    assert len(result.matches) == most_matches(candidates)


def test_alignments_of_usual_sentences_are_optimal():
    for seed in range(20):
        assert best_alignment(match_candidates(zipf(25, seed), zipf(25, seed + 99))).optimal
