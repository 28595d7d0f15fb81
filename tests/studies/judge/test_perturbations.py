"""Each perturbation changes every sentence as its name says, and repeatably."""

import pytest

from course_pkg.pages.datasets import load_sentences
from course_pkg.pages.perturbations import PERTURBATIONS, perturb

SENTENCES = load_sentences()
ORIGINAL = [sentence.text for sentence in SENTENCES]


def words(text):
    return sorted(text.replace(".", "").split())


def test_every_perturbation_except_identical_changes_every_sentence(subtests):
    for name in PERTURBATIONS:
        with subtests.test(name=name):
            changed = [a != b for a, b in zip(perturb(SENTENCES, name), ORIGINAL, strict=True)]
            assert changed == [name != "identical"] * len(SENTENCES)


def test_reordering_keeps_the_words_and_depends_only_on_the_seed():
    once = perturb(SENTENCES, "reordered", seed=1)
    assert once == perturb(SENTENCES, "reordered", seed=1)
    assert once != perturb(SENTENCES, "reordered", seed=2)
    assert [words(text) for text in once] == [words(text) for text in ORIGINAL]


def test_truncating_keeps_the_beginning_repeating_doubles_and_others_are_unknown():
    for short, whole in zip(perturb(SENTENCES, "truncated"), ORIGINAL, strict=True):
        assert whole.startswith(short) and 2 * len(short.split()) <= len(whole.split())
    assert perturb(SENTENCES, "repeated") == [f"{text} {text}" for text in ORIGINAL]
    with pytest.raises(ValueError, match=r"must be one of identical, paraphrased.*'shouted'"):
        perturb(SENTENCES, "shouted")
