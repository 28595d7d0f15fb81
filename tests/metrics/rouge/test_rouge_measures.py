from functools import partial
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from course_pkg.metrics.rouge import (
    options,
    perl,
    rouge_l,
    rouge_lsum,
    rouge_n,
    rouge_s,
    rouge_su,
    rouge_w,
)
from course_pkg.metrics.rouge.rouge_measures import USUAL, text_scores
from course_pkg.metrics.tokenizers import porter_stem
from tests.refusals import require_refusals

ALL = {
    "1": rouge_n,
    "2": lambda *texts, **options: rouge_n(*texts, n=2, **options),
    "l": rouge_l,
    "lsum": rouge_lsum,
    "w": rouge_w,
    "s": rouge_s,
    "su": rouge_su,
}
MODES = ("paper", "rouge155")
words = st.lists(st.sampled_from("abcde"), max_size=12).map(" ".join)
texts = st.lists(words, max_size=3).map("\n".join)
kinds = st.sampled_from(sorted(ALL))


def values(score):
    return score.precision, score.recall, score.fmeasure


def test_the_documents_worked_case():
    # Recall and precision of ROUGE-1, ROUGE-2 and ROUGE-L, counted by hand.
    for kind, recall, precision in (("1", 6 / 7, 1), ("2", 0.5, 0.6), ("l", 5 / 7, 5 / 6)):
        score = values(ALL[kind]("a dog is in the garden", "there is a dog in the garden"))
        f = 2 * recall * precision / (recall + precision)
        assert score == pytest.approx([precision, recall, f])


class TestPaper:
    """The examples of Lin 2004."""

    def test_the_union_of_two_sentences(self):
        hypothesis = "w1 w3 w8 w9 w5\nw1 w2 w6 w7 w8"
        score = rouge_lsum(hypothesis, "w1 w2 w3 w4 w5")
        assert (score.precision, score.recall) == (4 / 10, 4 / 5)  # w1 w2 and w1 w3 w5
        assert rouge_l(hypothesis, "w1 w2 w3 w4 w5").recall == 3 / 5  # w2 comes after w3 w5
        assert rouge_l(hypothesis, "w1 w2 w3 w4 w5", mode="rouge155").recall == 4 / 5  # lsum

    def test_a_run_counts_more_than_separate_words(self):
        reference = "a b c d e f g"
        run = "a b c d h i k"
        apart = "a h b k c i d"
        assert rouge_l(run, reference) == rouge_l(apart, reference)
        # Weight 2: (4² / 7²)^½ = 4/7 against (4 / 7²)^½ = 2/7.
        assert values(rouge_w(run, reference, weight=2)) == pytest.approx([4 / 7] * 3)
        assert values(rouge_w(apart, reference, weight=2)) == pytest.approx([2 / 7] * 3)


class TestPerl:
    """Where ROUGE-1.5.5 differs from the paper; worked by hand from the script's rules."""

    def test_rouge_w_weighs_a_references_length_twice(self):
        # 4 words, weight 2: base 4² = 16, then 16² = 256; R = (16 / 256)^½ = ¼, P = (16 / 16)^½.
        score = rouge_w("a b c d", "a b c d", weight=2, mode="rouge155")
        assert values(score) == (1, 0.25, 0.4)
        # Two lines of 2: base 2² + 2² = 8, hits 2² + 2² = 8; R = (8 / 64)^½, P = (8 / 16)^½.
        score = rouge_w("a b\nc d", "a b\nc d", weight=2, mode="rouge155")
        assert values(score)[:2] == (0.70711, 0.35355)

    def test_rouge_w_looks_for_gaps_in_the_reference_only(self):
        reference = "a b c d e f g"
        run = "a b c d h i k"
        apart = "a h b k c i d"
        score = {text: rouge_w(text, reference, weight=2, mode="rouge155") for text in (run, apart)}
        assert score[run] == score[apart]
        assert score[run].overlaps[0].matches == 16
        swapped = rouge_w(reference, apart, weight=2, mode="rouge155")
        assert swapped.overlaps[0].matches == 4

    def test_a_run_before_a_clipped_word_continues_at_the_next_match_or_is_lost(self):
        # The hypothesis has one "a", which matches in both lines of the reference. In the second
        # line "a" is clipped. No gap follows "b", so its run does not end, and it is lost.
        lost = rouge_w("b a", "a\nb a", weight=2, mode="rouge155")
        assert lost.overlaps[0].matches == 1
        # If "x c" follows, the run of 1 continues at the "c": 2² instead of 1 + 1.
        merged = rouge_w("b a c", "a\nb a x c", weight=2, mode="rouge155")
        assert merged.overlaps[0].matches == 1 + 2**2

    def test_the_best_reference_of_rouge_w_is_chosen_with_the_length_weighed_once(self):
        # Weight 2. "a x": 1 of 2² = 4 gives ½; the printed recall is (1/16)^½ = ¼.
        # "a b c d e f": 16 of 36 gives ⅔; the printed recall is (16/1296)^½ = 1/9, less than ¼.
        references = ["a x", "a b c d e f"]
        score = rouge_w("a b c d", references, weight=2, multi="best", mode="rouge155")
        assert (score.precision, score.recall) == (1.0, 0.11111)


def test_empty_texts_and_texts_without_a_match_score_zero():
    pairs = [("", ""), ("a b c", ""), ("...", "a b c"), ("a b", ["", "!"]), ("a b\nd", "e\nf g")]
    for kind, mode, pair in product(ALL, MODES, pairs):
        assert values(ALL[kind](*pair, mode=mode)) == (0, 0, 0), (kind, mode, pair)


def test_other_texts_and_options_raise_an_error():
    for kind in ALL:
        require_refusals(
            (b"text", "text", {}, "TypeError: a text must be a string"),
            ("text", ["a", None], {}, "TypeError: .* must be a string"),
            ("text", [], {}, "references is empty"),
            ("a", "a", {"mode": "perl"}, "mode must be"),
            ("a", "a", {"multi": "max"}, "multi must be"),
            ("a", "a", {"beta": -1}, "beta must be"),
            ("a", "a", {"tokenize": "words"}, "tokenizer must be"),
            ("a", "a", {"alpha": 0.5}, "TypeError.*unexpected keyword argument 'alpha'"),
            of=lambda x, y, options, kind=kind: ALL[kind](x, y, **options),
            errors=(TypeError, ValueError),
        )


def test_n_weight_and_beta_are_passed_on_and_checked():
    with pytest.raises(ValueError, match="n must be an integer of at least 1"):
        rouge_n("a", "a", 0)
    for weight in (0.5, 5, float("nan")):
        with pytest.raises(ValueError, match="weight must be from 1 to 4"):
            rouge_w("a", "a", weight=weight)
    with pytest.raises(TypeError, match="weight must be a number"):
        rouge_w("a", "a", weight="2")
    assert rouge_l("cat mat", "the cat is on the mat", beta=0).fmeasure == 1


@given(kind=kinds, x=texts)
def test_a_text_scores_one_against_itself(kind, x):
    minimum = 2 if kind in ("2", "s") else 1
    if len(x.split()) >= minimum:
        assert values(ALL[kind](x, x)) == pytest.approx([1, 1, 1])
    else:
        assert values(ALL[kind](x, x)) == (0, 0, 0)


@given(x=texts, y=texts, kind=st.sampled_from(["1", "2", "lsum", "s"]))
def test_the_modes_agree_to_five_digits_if_the_tool_follows_the_paper(x, y, kind):
    paper, perl = (values(ALL[kind](x, y, mode=mode)) for mode in MODES)
    assert perl == pytest.approx(paper, abs=2e-5)


def test_the_perl_tools_own_values_with_stemming(monkeypatch):
    # Printed by ROUGE-1.5.5.pl -n 2 -m -2 4 -u -w 1.2, with WordNet 2.0's exceptions; R, P, F.
    forms = {"children": "child", "better": "well", "bled": "bleed", "feet": "foot"}
    monkeypatch.setattr(options, "irregular_forms", lambda: forms | {"after": "after"})
    x = "the children were better\nand bled from their feet after the accidental fight"
    y = "a child was well and bleeds\nfrom a foot after accidents"
    expected = {
        rouge_n: (0.72727, 0.61538, 0.66666),
        ALL["2"]: (0.40000, 0.33333, 0.36363),
        rouge_l: (0.72727, 0.61538, 0.66666),
        rouge_w: (0.42063, 0.50101, 0.45731),
        partial(rouge_su, max_gap=4): (0.56000, 0.45161, 0.50000),
    }
    for score, (recall, precision, f) in expected.items():
        assert values(score(x, y, stem=True, mode="rouge155")) == (precision, recall, f), score
    assert rouge_n(x, y, stem={}, mode="rouge155").recall < 0.72727


HYPOTHESES = ["the cat sat", "a dog barked at us", "it rained", ""]
REFERENCES = [["the cat sat down", "a cat sat"], ["the dog barked"], ["it rained all day"], ["so"]]


def test_each_kind_has_the_scores_of_its_function_and_the_options():
    by_kind = text_scores(HYPOTHESES, REFERENCES, stem=True)
    assert tuple(by_kind) == USUAL
    pairs = list(zip(HYPOTHESES, REFERENCES, strict=True))
    assert by_kind["rouge2"] == tuple(rouge_n(*pair, 2, stem=True) for pair in pairs)
    assert by_kind["rougeL"] == tuple(rouge_l(*pair, stem=True) for pair in pairs)


def test_lists_that_do_not_fit_and_unknown_kinds_raise_an_error():
    require_refusals(
        (["a"], ["a", "b"], USUAL, "1 hypotheses and 2 references"),
        ([], [], USUAL, "at least one hypothesis"),
        (["a"], ["a"], ["rouge0"], "kind must be one of rouge1"),
        (["a"], [[]], USUAL, "references is empty"),
        of=text_scores,
    )


def test_step_4_may_remove_two_suffixes():
    for word, stem, nltk in (
        ("agreement", "agreem", "agreement"),  # keeps -ement and -ment (m = 1), loses -ent
        ("accidental", "accid", "accident"),  # loses -al, then also -ent
        ("adoption", "adopt", "adopt"),
        ("replacement", "replac", "replac"),
        ("running", "run", "run"),
    ):
        assert perl.stem(word, {}) == stem
        assert porter_stem(word) == nltk


def test_a_table_that_is_too_large_raises_an_error(monkeypatch):
    monkeypatch.setattr(perl, "_MOST_CELLS", 100)
    perl.wlcs_positions(["a"] * 10, ["a"] * 10, 2)
    with pytest.raises(ValueError, match="each sentence on its own line"):
        perl.wlcs_positions(["a"] * 11, ["a"] * 10, 2)
