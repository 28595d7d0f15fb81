import random
from collections import Counter

import pytest
from sacrebleu.metrics.bleu import BLEU

from course_pkg.metrics.bleu import corpus_bleu, sentence_bleu
from course_pkg.metrics.tokenizers import tokenize

TOLERANCE = 1e-9  # sacrebleu works with percentages, so the last digits of a logarithm differ
TOKENIZERS = ["13a", "none", "char", "zh"]
WORDS = [
    *("the", "The", "a", "cat", "cats", "sat", "on", "mat", ".", ",", "3.5", "1,000", "re-use"),
    *("5-4", "don't", "(so)", "&amp;", "&lt;b&gt;", "&quot;x&quot;", "A.B.", "7.", ".5", "end-"),
    *("猫", "坐在垫子上。", "“好”，", "é", "½", "$4", "50%", "x...", "<skipped>", "l'eau"),
]


def random_text(rng, longest=9):
    return rng.choice([" ", " ", "  "]).join(rng.choices(WORDS, k=rng.randint(0, longest)))


def random_corpus(rng):
    """Hypotheses that share many words with their references, one to three per sentence."""
    references = [
        [random_text(rng) for _ in range(rng.randint(1, 3))] for _ in range(rng.randint(1, 5))
    ]
    hypotheses = []
    for group in references:
        words = rng.choice(group).split(" ")
        for _ in range(rng.randint(0, 3)):
            words.insert(rng.randint(0, len(words)), rng.choice(WORDS))
        hypotheses.append(" ".join(words[rng.randint(0, 2) :]))
    return hypotheses, references


def streams(references):
    """sacrebleu's layout: the first reference of every sentence, the second of every sentence...;
    None if a sentence has fewer references."""
    most = max(map(len, references))
    return [[group[i] if i < len(group) else None for group in references] for i in range(most)]


@pytest.mark.parametrize(
    ("name", "smoothing"),
    [("13a", "exp"), ("13a", "none"), ("none", "floor"), ("char", "add-k"), ("zh", "exp")],
)
def test_random_corpora_have_sacrebleus_scores_and_signatures(name, smoothing):
    rng = random.Random(f"{name} {smoothing}")
    seen = Counter()
    for _ in range(250):
        hypotheses, references = random_corpus(rng)
        value = None
        if smoothing in ("floor", "add-k"):
            value = rng.choice([None, 0, 0.01, 0.5, 1 if smoothing == "floor" else 2])
        effective = rng.random() < 0.5
        lower = rng.random() < 0.5
        order = rng.choice([1, 2, 3, 4, 4, 4, 6])
        peer = BLEU(
            lowercase=lower,
            tokenize=name,
            smooth_method=smoothing,
            smooth_value=value,
            max_ngram_order=order,
            effective_order=effective,
        )
        theirs = peer.corpus_score(hypotheses, streams(references))
        ours = corpus_bleu(
            hypotheses,
            references,
            smoothing=smoothing,
            smooth_value=value,
            tokenize=name,
            effective_order=effective,
            max_order=order,
            lowercase=lower,
        )
        assert ours.score == pytest.approx(theirs.score / 100, abs=TOLERANCE)
        assert ours.precisions == pytest.approx([p / 100 for p in theirs.precisions], abs=TOLERANCE)
        assert (ours.hypothesis_length, ours.reference_length) == (theirs.sys_len, theirs.ref_len)
        assert ours.brevity_penalty == pytest.approx(theirs.bp, abs=TOLERANCE)
        if smoothing != "add-k":  # with add-k, sacrebleu's counts include k
            assert [*ours.matches, *ours.totals] == [*theirs.counts, *theirs.totals]
        settings, _, version = ours.signature.partition("|version:")
        shown = f"|order:{order}" if order != 4 else ""  # sacrebleu does not show it
        assert settings == str(peer.get_signature()).partition("|version:")[0] + shown
        assert version.startswith("course_pkg ")
        seen["zero"] += theirs.score == 0
        seen["short"] += 0 < theirs.bp < 1
        seen["scored"] += 0 < theirs.score < 100
        seen["several"] += len({len(group) for group in references}) > 1
    assert all(seen[kind] for kind in ("zero", "short", "scored", "several")), seen


def test_sentences_have_sacrebleus_scores():
    rng = random.Random(0)
    peer = BLEU(effective_order=True)
    for _ in range(1000):
        (hypothesis, *_), (references, *_) = random_corpus(rng)
        theirs = peer.sentence_score(hypothesis, references).score
        assert sentence_bleu(hypothesis, references).score == pytest.approx(
            theirs / 100, abs=TOLERANCE
        )


@pytest.mark.parametrize("name", TOKENIZERS)
def test_every_character_is_tokenized_as_in_sacrebleu(name):
    peer = BLEU(tokenize=name).tokenizer
    points = [*range(0x20, 0x3000), *range(0x3000, 0xD800, 7), *range(0xE000, 0x20000, 5), 0x20000]
    for point in points:
        text = f"a{chr(point)}1"
        assert tokenize(text, name) == peer(text.rstrip()).split(), hex(point)


@pytest.mark.parametrize("name", TOKENIZERS)
def test_random_strings_are_tokenized_as_in_sacrebleu(name):
    pieces = [*"ab 15.,.,--\n\t&;'\"<>()$%中。“”", "&amp;", "&lt;", "&quot;", "<skipped>", "-\n"]
    pieces += ["lt;", "quot;"]  # behind "&amp;"
    rng = random.Random(name)
    peer = BLEU(tokenize=name).tokenizer
    for _ in range(5000):
        text = "".join(rng.choices(pieces, k=rng.randint(0, 14)))
        assert tokenize(text, name) == peer(text.rstrip()).split(), repr(text)
