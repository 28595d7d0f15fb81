"""Shared n-grams: every match is exact, and the form of a text doesn't matter."""

import random
import textwrap

from course_pkg.metrics.ngrams import ngrams
from course_pkg.studies.contamination.overlap import find_overlaps, normalized_words
from tests.refusals import require_refusals

ITEM = "The ferry to the island leaves at nine, and the last one comes back at half past six."


def covered_by_hand(item: str, training: list[str], n: int) -> int:
    """Words of the item in any n-gram that a training text has, by sets of tuples."""
    words = [word.text for word in normalized_words(item)]
    seen = {
        gram for text in training for gram in ngrams([w.text for w in normalized_words(text)], n)
    }
    found = set()
    for start, gram in enumerate(ngrams(words, n)):
        if gram in seen:
            found |= set(range(start, start + n))
    return len(found)


def random_text(generator: random.Random, words: int) -> str:
    return " ".join(generator.choice(["ab", "cd", "ef", "gh"]) for _ in range(words))


def test_the_covered_words_are_those_of_a_search_by_sets():
    for n in (1, 2, 3, 5):
        generator = random.Random(n)
        for _ in range(20):
            items = [random_text(generator, generator.randrange(1, 12)) for _ in range(3)]
            training = [random_text(generator, generator.randrange(0, 15)) for _ in range(4)]
            found = find_overlaps(items, training, n)
            assert [each.covered for each in found] == [
                covered_by_hand(item, training, n) for item in items
            ]


def test_case_wrapping_punctuation_and_ligatures_hide_a_copy_only_without_normalization():
    for change in (
        str.upper,
        lambda text: textwrap.fill(text, 20),
        lambda text: text.replace(",", " --").replace(" ", "\u00a0 "),
        lambda text: text.replace("fi", "ﬁ"),
        lambda text: f"Before. {text} After.",
    ):
        [found] = find_overlaps([ITEM], [change(ITEM)], 8)
        assert found.share == 1 and found.longest == found.words
    wrapped = textwrap.fill(ITEM, 30)
    assert find_overlaps([ITEM], [wrapped], 8, normalized=False)[0].share == 0
    assert find_overlaps([ITEM], [ITEM], 8, normalized=False)[0].share == 1


def test_spans_are_where_the_text_is_in_the_item_and_a_changed_word_divides_them():
    training = ["nothing here", "An island leaves at nine, and so on.", "the last one comes back"]
    [found] = find_overlaps([ITEM], [*training, *training], 3)
    texts = [(ITEM[span.start : span.end], span.document, span.words) for span in found.spans]
    assert texts == [("island leaves at nine, and", 1, 5), ("the last one comes back", 2, 5)]
    assert found.covered == 10
    item = "one two three four five six seven"
    text = "one two three 4 five six seven"
    [found] = find_overlaps([item], [text], 3)
    assert [(span.start, span.end, span.words) for span in found.spans] == [(0, 13, 3), (19, 33, 3)]
    assert (found.covered, found.longest) == (6, 3)


def test_bad_input_is_named():
    require_refusals(
        ([], [ITEM], 3, "items is empty"),
        ([ITEM, 3], [ITEM], 3, "item 1 must be a string"),
        ([ITEM], [ITEM], 0, "n must be an integer"),
        of=find_overlaps,
        errors=(TypeError, ValueError),
    )


def test_short_items_chinese_and_texts_without_words():
    found = find_overlaps(["Two words", ITEM], ["Two words"], 3)
    assert [each.checked for each in found] == [False, True]
    assert found[0].share == 0 and found[0].longest == 0
    assert [word.text for word in normalized_words("用A4纸")] == ["用", "a4", "纸"]
    assert find_overlaps(["北京是中国的首都"], ["书上说，北京是中国的首都。"], 8)[0].share == 1
    [found] = find_overlaps(["... !"], ["... !"], 1)
    assert (found.words, found.share) == (0, 0.0)
