"""Edits do to every sentence what their names say, and the same thing each time."""

import pytest

from course_pkg.metrics.edits import EDITS, edited, load_edited

TEXTS = load_edited()
ORIGINAL = [t.text for t in TEXTS]


def words(text):
    return sorted(text.replace(".", "").split())


@pytest.mark.parametrize("edit", EDITS)
def test_every_edit_changes_every_sentence_but_one_that_changes_none(edit):
    changed = [a != b for a, b in zip(edited(TEXTS, edit), ORIGINAL, strict=True)]
    assert changed == [edit != "identical"] * len(TEXTS)


def test_reordering_keeps_the_words_and_repeats_with_its_seed():
    once = edited(TEXTS, "reordered", seed=1)
    assert once == edited(TEXTS, "reordered", seed=1) != edited(TEXTS, "reordered", seed=2)
    assert [words(text) for text in once] == [words(text) for text in ORIGINAL]


def test_truncating_keeps_the_beginning_and_repeating_doubles():
    for short, whole in zip(edited(TEXTS, "truncated"), ORIGINAL, strict=True):
        assert whole.startswith(short) and 2 * len(short.split()) <= len(whole.split())
    assert edited(TEXTS, "repeated") == [f"{text} {text}" for text in ORIGINAL]


def test_another_sentence_is_another_one_of_the_set():
    others = edited(TEXTS, "another sentence")
    assert sorted(others) == sorted(ORIGINAL)


def test_a_paraphrase_shares_fewer_words_than_a_negation():
    """Else the comparison would not tell words from meaning."""
    for t in TEXTS:
        mine, kept, turned = (set(words(x.lower())) for x in (t.text, t.paraphrase, t.negation))
        assert len(mine & kept) < len(mine & turned)


def test_an_unknown_edit_names_those_there_are():
    with pytest.raises(ValueError, match="identical, paraphrased"):
        edited(TEXTS, "shouted")
