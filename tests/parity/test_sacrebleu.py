"""BLEU compared with sacrebleu (random corpora, tokenizers, bootstrap) and with nltk."""

import random
import warnings
from collections import Counter

import numpy as np
import pytest
from nltk.translate import bleu_score as nltk_bleu
from sacrebleu.metrics.bleu import BLEU
from sacrebleu.significance import PairedTest

from course_pkg.metrics.bleu import PreparedReferences, corpus_bleu, sentence_bleu
from course_pkg.metrics.significance import paired_bootstrap
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


@pytest.mark.parametrize("name", TOKENIZERS)
@pytest.mark.parametrize("smoothing", ["none", "floor", "add-k", "exp"])
def test_random_corpora_have_sacrebleus_scores(name, smoothing):
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


def test_prepared_references_give_the_scores_of_sacrebleus_cached_ones():
    rng = random.Random(1)
    _, references = zip(*(random_corpus(rng) for _ in range(20)), strict=True)
    references = [group for groups in references for group in groups]
    peer = BLEU(references=streams(references))
    prepared = PreparedReferences(references)
    for _ in range(5):
        system = [rng.choice(group) + " " + random_text(rng, 2) for group in references]
        theirs = peer.corpus_score(system, None).score
        assert prepared.score(system).score == pytest.approx(theirs / 100, abs=TOLERANCE)


def test_an_empty_reference_has_no_tokens_and_none_is_not_a_reference():
    hypotheses = ["a"]
    longer = "a b c d e f"
    with_empty = BLEU().corpus_score(hypotheses, [[longer], [""]])
    without = BLEU().corpus_score(hypotheses, [[longer], [None]])
    assert (with_empty.ref_len, without.ref_len) == (0, 6)
    assert corpus_bleu(hypotheses, [[longer, ""]]).reference_length == 0
    assert corpus_bleu(hypotheses, [[longer]]).reference_length == 6


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
    rng = random.Random(name)
    peer = BLEU(tokenize=name).tokenizer
    for _ in range(5000):
        text = "".join(rng.choices(pieces, k=rng.randint(0, 14)))
        assert tokenize(text, name) == peer(text.rstrip()).split(), repr(text)


@pytest.fixture(scope="module")
def two_systems():
    """200 sentences; the second system changes fewer words than the first."""
    rng = random.Random(5)
    words = [f"w{number}" for number in range(60)]
    references = [rng.choices(words, k=rng.randint(5, 20)) for _ in range(200)]
    worse, better = (
        [" ".join(w if rng.random() > p else rng.choice(words) for w in r) for r in references]
        for p in (0.33, 0.30)
    )
    return worse, better, [[" ".join(reference)] for reference in references]


def test_the_paired_bootstrap_equals_sacrebleus_for_the_same_seed(two_systems):
    worse, better, references = two_systems
    named = [("worse", worse), ("better", better)]
    test = PairedTest(named, {"BLEU": BLEU()}, streams(references), test_type="bs", n_samples=500)
    _, results = test()
    theirs = results["BLEU"][1]
    ours = paired_bootstrap(worse, better, references, samples=500, seed=12345)
    ordered = np.sort(ours.scores[:, 1])
    half_width = (ordered[-(500 // 40) - 1] - ordered[500 // 40]) / 2
    assert ours.system == pytest.approx(theirs.score / 100, abs=TOLERANCE)
    assert ordered.mean() == pytest.approx(theirs.mean / 100, abs=1e-6)  # it sums in float32
    assert half_width == pytest.approx(theirs.ci / 100, abs=1e-6)
    assert ours.p_value == pytest.approx(theirs.p_value, abs=1.5 / 501)  # one tie may go either way
    assert 0.01 < theirs.p_value < 0.5  # not extreme, so that an error would show


def test_a_system_compared_with_itself_has_p_1_here_and_a_small_p_in_sacrebleu(two_systems):
    _, better, references = two_systems
    named = [("one", better), ("same", better)]
    _, results = PairedTest(named, {"BLEU": BLEU()}, streams(references), "bs", n_samples=99)()
    assert results["BLEU"][1].p_value == pytest.approx(1 / 100)
    assert paired_bootstrap(better, better, references, samples=99).p_value == 1


def nltk_score(hypotheses, references, smooth=None):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it warns if an order has no match
        return nltk_bleu.corpus_bleu(
            [[text.split() for text in group] for group in references],
            [text.split() for text in hypotheses],
            smoothing_function=smooth,
        )


def test_nltk_agrees_on_long_texts_that_are_split_at_spaces():
    rng = random.Random(3)
    compared = 0
    for _ in range(300):
        hypotheses, references = random_corpus(rng)
        ours = corpus_bleu(hypotheses, references, tokenize="none", smoothing="none")
        if min(len(text.split()) for text in hypotheses) >= 4 and all(ours.matches):
            compared += 1
            assert nltk_score(hypotheses, references) == pytest.approx(ours.score, abs=TOLERANCE)
    assert compared > 20


@pytest.mark.parametrize("smoothing, method", [("floor", 1), ("add-k", 2), ("exp", 3)])
def test_three_smoothings_equal_nltks(smoothing, method):
    smooth = getattr(nltk_bleu.SmoothingFunction(), f"method{method}")
    for hypothesis, reference in (
        ("the cat the cat on the mat", "the cat is on the mat"),
        ("a cat sits on mat", "the cat is sitting on the mat"),
    ):
        ours = corpus_bleu([hypothesis], [[reference]], smoothing=smoothing)
        assert not all(ours.matches)
        theirs = nltk_score([hypothesis], [[reference]], smooth)
        assert theirs == pytest.approx(ours.score, abs=TOLERANCE)


def test_nltk_differs_in_three_places():
    # 1 It counts a text without n-grams of some order as having one, so p_n is lower.
    hypotheses = ["a b c", "a b c d e"]
    references = [["a b c"], ["a b c d e"]]
    ours = corpus_bleu(hypotheses, references, smoothing="none", tokenize="none")
    assert (ours.score, ours.totals) == (1.0, (8, 6, 4, 2))
    assert nltk_score(hypotheses, references) == pytest.approx((2 / 3) ** 0.25)
    # 2 An order without a match counts as the smallest positive number, not as zero.
    hypotheses = ["the cat the cat on the mat"]
    references = [["the cat is on the mat"]]
    ours = corpus_bleu(hypotheses, references, smoothing="none").score
    assert ours == 0 < nltk_score(hypotheses, references) < 1e-60
    # 3 It leaves tokenizing to the caller; split at spaces, a period stays part of its word.
    one = ["It is the mat."]
    other = [["It was not the mat ."]]
    assert corpus_bleu(one, other).matches != corpus_bleu(one, other, tokenize="none").matches


@pytest.mark.parametrize("effective", [True, False])
@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        ({}, {}),
        ({"smoothing": "floor"}, {"smooth_method": "floor"}),
        (
            {"smoothing": "add-k", "smooth_value": 0.5},
            {"smooth_method": "add-k", "smooth_value": 0.5},
        ),
        ({"smoothing": "none", "lowercase": True}, {"smooth_method": "none", "lowercase": True}),
    ],
)
def test_the_signature_is_sacrebleus_but_for_the_version(ours, theirs, effective):
    hypotheses = ["a cat sat", "it rains"]
    groups = [["the cat sat"], ["it rains", "rain"]]
    for references in (groups, [[one[0]] for one in groups]):
        peer = BLEU(**theirs, effective_order=effective)
        peer.corpus_score(hypotheses, streams(references))
        score = corpus_bleu(hypotheses, references, effective_order=effective, **ours)
        name, _, version = score.signature.partition("|version:")
        assert name == str(peer.get_signature()).partition("|version:")[0]
        assert version.startswith("course_pkg ")
    two = corpus_bleu(hypotheses, groups, max_order=2).signature
    assert "|order:2|" in two
