"""METEOR compared with NLTK, without the cases in which they differ.

NLTK aligns greedily from the right, and passes the *stems* of unmatched words to its synonym stage.
So the texts have neither repeated stems nor synonyms; the page on METEOR shows the differences.
"""

import random

import pytest
from nltk.translate.meteor_score import meteor_score, single_meteor_score

from course_pkg.metrics.meteor import MeteorParameters, meteor
from course_pkg.metrics.tokenizers import porter_stem


class NoSynonyms:
    """WordNet's interface in NLTK, without a word."""

    def synsets(self, _word):
        return []


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
        ours = meteor(hypothesis, reference, synonyms=None, tokenize="whitespace").score
        theirs = single_meteor_score(reference.split(), hypothesis.split(), wordnet=NoSynonyms())
        assert ours == pytest.approx(theirs)


def test_several_references_and_other_parameters_agree():
    references = ["the green table walked", "a garden happened"]
    hypothesis = "the green garden happened"
    expected = meteor_score(
        [text.split() for text in references],
        hypothesis.split(),
        wordnet=NoSynonyms(),
        alpha=0.5,
        beta=1,
    )
    parameters = MeteorParameters(alpha=0.5, beta=1.0, gamma=0.5)
    score = meteor(hypothesis, references, version=parameters, synonyms=None)
    assert score.score == pytest.approx(expected)
