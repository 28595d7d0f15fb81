import random
import string

import pytest
from rouge_score.rouge_scorer import RougeScorer

from course_pkg.metrics.rouge import rouge_l, rouge_lsum, rouge_n, rouge_tokens
from course_pkg.pages.datasets import load_examples

KINDS = {f"rouge{n}": n for n in (1, 2, 3, 4, 9)} | {"rougeL": None, "rougeLsum": None}
GAPS = [" ", " ", " ", ", ", "-", ". ", "'s "]


def ours(kind, hypothesis, references, **options):
    if KINDS[kind]:
        score = rouge_n(hypothesis, references, KINDS[kind], **options)
    else:
        score = {"rougeL": rouge_l, "rougeLsum": rouge_lsum}[kind](
            hypothesis, references, **options
        )
    return score.precision, score.recall, score.fmeasure


def random_text(rng, vocabulary):
    """Up to three lines of up to 14 words, with capitals, punctuation and odd spaces."""
    lines = []
    for _ in range(rng.randint(0, 3)):
        words = rng.choices(vocabulary, k=rng.randint(0, 14))
        words = [word.title() if rng.random() < 0.1 else word for word in words]
        lines.append("".join(word + rng.choice(GAPS) for word in words))
    return "\n".join(lines)


def vocabularies():
    prose = {word for example in load_examples(split="train") for word in example.response.split()}
    return {
        "two letters": list("ab"),
        "ten letters": list(string.ascii_lowercase[:10]),
        "prose": sorted(prose),
        "odd characters": ["naïve", "x_y", "3.5", "a\tb", "É", "İ", "\u212a", "ß", "\r", "…", "!"],
    }


@pytest.mark.parametrize("stem", [False, True])
@pytest.mark.parametrize("vocabulary", vocabularies())
@pytest.mark.filterwarnings("ignore:no token is left")
def test_scores_are_equal_on_random_pairs(vocabulary, stem):
    rng = random.Random(f"{vocabulary} {stem}")
    words = vocabularies()[vocabulary]
    scorer = RougeScorer(list(KINDS), use_stemmer=stem)
    overlapping = 0
    for _ in range(600):
        reference = random_text(rng, words)
        hypothesis = random_text(rng, words)
        theirs = scorer.score(reference, hypothesis)
        overlapping += theirs["rouge1"].fmeasure > 0
        for kind in KINDS:
            assert ours(kind, hypothesis, reference, stem=stem) == tuple(theirs[kind]), (
                f"{kind} of {hypothesis!r} against {reference!r}"
            )
    assert overlapping > 200  # many pairs have a score above 0


@pytest.mark.parametrize("vocabulary", ["two letters", "ten letters"])
def test_scores_are_equal_with_several_references(vocabulary):
    rng = random.Random(vocabulary)
    words = vocabularies()[vocabulary]
    scorer = RougeScorer(list(KINDS))
    for _ in range(600):
        hypothesis = random_text(rng, words)
        references = [random_text(rng, words) for _ in range(rng.randint(1, 4))]
        theirs = scorer.score_multi(references, hypothesis)
        for kind in KINDS:
            assert ours(kind, hypothesis, references) == tuple(theirs[kind])


@pytest.mark.parametrize("kind", KINDS)
def test_scores_are_equal_on_long_texts(kind):
    rng = random.Random(kind)
    vocabulary = [str(int(2 ** (9 * rng.random()))) for _ in range(400)]
    reference, hypothesis = (" ".join(rng.choices(vocabulary, k=700)) for _ in "xy")
    theirs = RougeScorer([kind]).score(reference, hypothesis)[kind]
    assert ours(kind, hypothesis, reference) == tuple(theirs)


def test_scores_are_equal_if_rouge_score_uses_our_tokenizer():
    class Unicode:
        def tokenize(self, text):
            return rouge_tokens(text, "unicode")

    reference = "大语言模型的评测\n困惑度 PPL"
    hypothesis = "评测大模型\nPPL 是困惑度"
    theirs = RougeScorer(list(KINDS), tokenizer=Unicode()).score(reference, hypothesis)
    for kind in KINDS:
        assert ours(kind, hypothesis, reference, tokenize="unicode") == tuple(theirs[kind])
    assert theirs["rougeL"].fmeasure > 0
