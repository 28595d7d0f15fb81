"""What must hold for the checks of `rouge` beyond what holds for every assignment."""

import itertools
from functools import cache

import numpy as np
import pytest

from course_pkg.grading.checks.rouge import ask, sentences
from course_pkg.grading.contract import registry
from course_pkg.grading.contract.exam import Exam
from course_pkg.grading.contract.questions import draw_cases
from course_pkg.metrics.rouge.lcs import lcs_table
from course_pkg.sandbox.policy import module_masks

WORDS = {"a": "fox", "b": "poet", "c": "tree", "v": "finds", "w": "likes"}


def cases(pattern):
    """Every case of a pattern: its numbers depend on which words are equal, not on the words."""
    for longer, more, beta in itertools.product(range(4), range(3), (*sentences.BETAS, 1.2)):
        ends = list(sentences.REFERENCE_ENDS[:longer]), list(sentences.CANDIDATE_ENDS[:more])
        yield sentences.case(pattern, WORDS, *ends, beta)


@pytest.mark.parametrize("pattern", sentences.PATTERNS, ids=lambda pattern: pattern[1])
def test_every_case_by_hand_tells_all_misconceptions(pattern):
    questions = [q for q in registry.trusted("rouge").values() if q.variant]
    for case in cases(pattern):
        for question in questions:
            assert draw_cases(question, None, case)  # raises where a wrong method is right


def test_words_that_are_put_in_or_added_stand_nowhere_else():
    fixed = {word for pattern in sentences.PATTERNS for text in pattern for word in text.split()}
    pools = [sentences.NOUNS.split(), sentences.VERBS.split()]
    pools += [sentences.REFERENCE_ENDS, sentences.CANDIDATE_ENDS, sorted(fixed)]
    words = list(itertools.chain(*pools))
    assert len(words) == len(set(words)) and not any(" " in word for word in words)


def test_without_a_name_the_case_is_the_documents():
    case = sentences.by_hand(None)
    assert (case["reference"], case["candidate"]) == ("the cat is on the mat", "cat mat")


def test_libraries_that_answer_are_masked():
    masks = module_masks(ask.MASKED, "")
    assert {path.name for path in masks} == {"metrics", "rouge_score", "nltk", "rapidfuzz"}


def by_recursion(a, b):
    """The LCS without a table: exponential."""
    if not a or not b:
        return 0
    if a[-1] == b[-1]:
        return by_recursion(a[:-1], b[:-1]) + 1
    return max(by_recursion(a[:-1], b), by_recursion(a, b[:-1]))


def by_memory(a, b):
    """The LCS by recursion that remembers."""

    @cache
    def length(i, j):
        if i == 0 or j == 0:
            return 0
        if a[i - 1] == b[j - 1]:
            return length(i - 1, j - 1) + 1
        return max(length(i - 1, j), length(i, j - 1))

    return length(len(a), len(b))


def by_places(a, b):
    """The LCS by the places of each token and increasing series of them: hashes, no table."""
    places, ends = {}, []
    for place, token in enumerate(b):
        places.setdefault(token, []).append(place)
    for token in a:
        for place in reversed(places.get(token, [])):
            before = sum(end < place for end in ends)
            ends[before : before + 1] = [place]
    return len(ends)


def with_numpy(a, b):
    """The LCS from a table of equal tokens, row by row."""
    row = np.zeros(len(b) + 1, int)
    for token in a:
        same = [token == other for other in b]
        row = np.maximum.accumulate(np.concatenate([[0], np.maximum(row[1:], row[:-1] + same)]))
    return row[-1]


@pytest.mark.parametrize(
    ("answer", "earned"),
    [
        (lambda a, b: lcs_table(a, b)[-1][-1], 5),
        (by_memory, 5),
        (by_places, 5),
        (with_numpy, 5),
        (by_recursion, 4),
    ],
)
def test_comparisons_are_counted_and_not_timed(answer, earned):
    exam = Exam("rouge", "ada")
    outcomes = []
    for inputs in exam.inputs("lcs"):
        try:
            outcomes.append({"value": int(ask.call_lcs(answer, inputs))})
        except RuntimeError as error:
            outcomes.append({"error": str(error)})
    exam.record("lcs", outcomes)
    result = exam.result("lcs")
    assert result.earned == earned
    lost = {p.name: p.failure.reason for p in result.properties if p.failure}
    assert set(lost) == ({"fast"} if earned == 4 else set())
    assert all("compared tokens more than" in reason for reason in lost.values())


def test_the_lcs_that_rouge_l_is_given_knows_its_two_texts_alone():
    inputs = {"candidate": ["a", "b"], "reference": ["b"], "beta": 1.0, "lcs": 1}

    def answer(candidate, reference, beta, lcs_length):
        with pytest.raises(ValueError, match="candidate and the reference"):
            lcs_length(candidate, candidate)
        return lcs_length(candidate, reference), lcs_length(tuple(reference), candidate)

    assert ask.call_rouge_l(answer, inputs) == (1, 1)
