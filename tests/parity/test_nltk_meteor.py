"""METEOR compared with NLTK: equal scores, and the cases in which they differ.

NLTK aligns greedily from the right, and passes the *stems* of unmatched words to its synonym stage.
"""

import random

import pytest
from nltk.translate.meteor_score import meteor_score, single_meteor_score

from course_pkg.metrics.meteor import PARAMETERS, meteor
from course_pkg.metrics.tokenizers import porter_stem


class Lemma:
    def __init__(self, word):
        self.word = word

    def name(self):
        return self.word


class Synset:
    def __init__(self, words):
        self.words = words

    def lemmas(self):
        return [Lemma(word) for word in self.words]


class Sets:
    """Sets of synonyms with the interface of WordNet in NLTK."""

    def __init__(self, *sets):
        self.sets = sets

    def synsets(self, word):
        return [Synset(group) for group in self.sets if word in group]


def theirs(hypothesis, reference, *sets, **options):
    return single_meteor_score(
        reference.split(), hypothesis.split(), wordnet=Sets(*sets), **options
    )


def ours(hypothesis, reference, *sets, **options):
    return meteor(hypothesis, reference, synonyms=sets, tokenize="whitespace", **options)


STEMS = "cat sit jump house garden quickly happen relate nation walk table green"
ENDINGS = ["", "s", "ed", "ing"]


def test_without_repeated_stems_and_synonyms_they_are_equal():
    rng = random.Random(0)
    stems = STEMS.split()
    assert len({porter_stem(word) for word in stems}) == len(stems)
    for _ in range(1000):
        hypothesis, reference = (
            " ".join(stem + rng.choice(ENDINGS) for stem in rng.sample(stems, rng.randint(1, 9)))
            for _ in range(2)
        )
        assert ours(hypothesis, reference).score == pytest.approx(theirs(hypothesis, reference))


def test_with_repeated_words_ours_never_has_more_chunks_and_sometimes_has_fewer():
    rng = random.Random(0)
    fewer = 0
    for _ in range(500):
        hypothesis, reference = (" ".join(rng.choices(["the", "a", "cat"], k=7)) for _ in range(2))
        mine = ours(hypothesis, reference)
        yours = theirs(hypothesis, reference)
        assert mine.score >= yours - 1e-12
        fewer += mine.score > yours + 1e-12
    assert fewer > 100


def test_the_greedy_alignment_splits_a_chunk():
    # NLTK starts on the right and matches the last "the" first: the cat | the.
    hypothesis = "the cat"
    reference = "the cat saw the"
    assert ours(hypothesis, reference).chunks == 1
    assert ours(hypothesis, reference).score > theirs(hypothesis, reference) + 0.1


def test_nltk_misses_synonyms_whose_stem_is_a_different_word():
    group = {"car", "automobile"}
    assert porter_stem("automobile") != "automobile"
    assert theirs("car", "automobile", group) == 0
    assert ours("car", "automobile", group).score == pytest.approx(1 - 0.5)
    # If stemming changes neither word, both find the synonym.
    assert theirs("big", "large", {"big", "large"}) == 0  # no word has the synonym "larg"
    assert theirs("big", "grand", {"big", "grand"}) == ours("big", "grand", {"big", "grand"}).score


def test_several_references_and_other_parameters_agree():
    references = ["the green table walked", "a garden happened"]
    hypothesis = "the green garden happened"
    expected = meteor_score(
        [text.split() for text in references], hypothesis.split(), wordnet=Sets(), alpha=0.5, beta=1
    )
    parameters = type(PARAMETERS["2005"])(alpha=0.5, beta=1.0, gamma=0.5)
    found = meteor(hypothesis, references, version=parameters, synonyms=None)
    assert found.score == pytest.approx(expected)
