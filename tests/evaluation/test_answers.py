import re
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from course_pkg.evaluation.answer_extraction import Rule, extract
from course_pkg.evaluation.answer_match import exact_match, f1, normalize
from tests.refusals import require_refusals


def test_a_rule_finds(subtests):
    for rule, text, answer in (
        ("whole text", "\n two\nlines \n", "two\nlines"),
        ("first line", "\n\nParis  \nRome", "Paris"),
        ("letter alone", " B", "B"),
        ("letter alone", "(B).\nmore", "B"),
        ("letter alone", "A dog", None),  # an article
        ("letter alone", "I think so", None),
        ("letter first", "B. Paris", "B"),
        ("letter first", "B) Paris", "B"),
        ("letter first", "B.C. 300", None),
        ("letter first", "A dog", None),
        ("answer is letter", "So the answer is (C), not A.", "C"),
        ("answer is letter", "Answer: B\nNo. Answer: D", "D"),
        ("answer is letter", "The answer is Charles", None),
        ("after ####", "3 + 4 = 7\n#### 7\n#### 8", "7"),
        ("answer is", "Hm. The answer is 3.5.\n", "3.5"),
        ("answer is", "The answer: Mount Etna", "Mount Etna"),
        ("boxed", r"\boxed{1} or \boxed{2}", "2"),
        ("first number", "3 of 12", "3"),
        ("last number", "It costs $1,234.50.", "$1,234.50"),
        ("last number", "about -5", "-5"),
        ("last number", "from 3-5", "5"),  # a range
        ("last number", "7, 8,9", "9"),  # a list
        ("last number", "Version B2", None),
        ("last number", "It is 18. Well ...", "18"),
        ("last number", "The probability is .5", ".5"),
        ("last number", "so it is...5", "5"),
        ("last number", "version 1.5.2", "2"),
        ("last number", "about 1e-5", "1e-5"),
        ("last number", "2.5E+3 of them", "2.5E+3"),
        ("last number", "5e and no more", "5"),
        ("boxed", r"\boxed{\frac{1}{2}}.", r"\frac{1}{2}"),
        ("boxed", r"\boxed{\{1, \sqrt{\frac{2}{3}}\}}", r"\{1, \sqrt{\frac{2}{3}}\}"),
        ("boxed", r"\boxed{1} and \boxed{2", "1"),
        ("answer is", "The answer is 5. No, the answer is 7.", "7"),
        ("answer is", "Final Answer: The final answer is $12$. I hope so.", "$12$. I hope so"),
        ("answer is", "The answer is **7**.", "7"),
        ("answer is", "The answer is:\n\n42\n", "42"),
        ("answer is letter", "The correct answer is **B**.", "B"),
        ("answer is letter", "**Answer:** B", "B"),
        ("letter alone", "**B**", "B"),
        ("first line", "   \n ", None),
        ("whole text", "   \n ", ""),
        ("whole text", "<think>6? 7?</think>\n 7", "7"),
        ("last number", "6? 7?</think> none", None),
        ("last number", " <think>is it 6", None),
    ):
        with subtests.test(rule=rule, text=text):
            extraction = extract(text, [rule])
            assert (extraction and extraction.answer) == answer
            if extraction:
                assert text[extraction.start : extraction.end] == answer
                assert extraction.rule == rule


def test_a_rule_takes_a_time_in_proportion_to_any_text():
    """What took quadratic time would take hours here."""
    many = 300_000
    for rule, text in (
        ("whole text", "x" + " " * many + "x" + " " * many),
        ("first line", "x" + " " * many + "x"),
        ("first line", " " * many),
        ("letter alone", " " * many + "A"),
        ("answer is", "answer is" + " " * many + "."),
        ("answer is", "answer is x" + " " * many + "y"),
        ("answer is", "answer is " * many),
        ("answer is letter", "answer" + "*" * many),
        ("answer is letter", "answer" + " " * many),
        ("after ####", "####" + " " * many + "\n"),
        ("after ####", "#" * many),
        ("boxed", "\\boxed{" * many),
        ("boxed", "\\boxed{" + "a{b}" * many),
        ("last number", "1," * many),
        ("last number", "1" * many + "x"),
        ("last number", "-" * many),
    ):
        extract(text, [rule])


def test_the_first_rule_that_matches_wins_and_it_may_be_your_own():
    text = "The answer is 7, or 8"
    assert extract(text, ["boxed", "answer is", "last number"]).rule == "answer is"
    assert extract(text, ["last number", "answer is"]).answer == "8"
    assert extract("x=3", [Rule("after x", r"x=(\d)")]).answer == "3"
    assert extract("x=3", [Rule("all", r"x=\d")]).answer == "x=3"
    require_refusals(
        (lambda: Rule("open", "("), "'open' is no regular expression"),
        (lambda: extract("x", ["numbers"]), "a rule must be one of whole text"),
        (lambda: extract("x", []), "rules is empty"),
    )


def test_normalization():
    table = [
        ("none", " A b. ", " A b. "),
        ("strip", " A b. ", "A b."),
        ("quasi", " The  cat's  AN-hour. ", "cats anhour"),
        ("number", "$1,234.50", "1234.5"),
        ("number", "−7 ", "-7"),
        ("number", "100", "100"),
        ("number", "12%.", "12"),
        ("number", "12 .", "12"),
        ("number", "-0.0", "0"),
        ("number", "twelve", "twelve"),
        ("number", "NaN", "NaN"),
        ("number", "1e999999999", "1e999999999"),
        ("number", "1" * 40, "1" * 40),
        ("number", ".5", "0.5"),
        ("number", "1e−5", "0.00001"),
    ]
    normalized = [(form, text, normalize(text, form)) for form, text, _ in table]
    assert normalized == table


@given(
    st.decimals(
        allow_nan=False, allow_infinity=False, min_value=-(10**9), max_value=10**9, places=6
    )
)
def test_a_number_keeps_its_value(value):
    assert Decimal(normalize(f"{value:f}", "number")) == value


def squad_tokens(text):
    """The official script's normalization, step by step in its order."""
    text = "".join(c for c in text.lower() if c not in "!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~")
    return re.sub(r"\b(a|an|the)\b", " ", text).split()


words = st.lists(st.sampled_from(["a", "The", "cat", "Cat.", "mat", "an"]), max_size=5)


@given(words, words)
def test_f1_is_the_harmonic_mean_of_precision_and_recall_of_words(answer, reference):
    answer, reference = " ".join(answer), " ".join(reference)
    written = squad_tokens(answer)
    wanted = squad_tokens(reference)
    if not wanted:
        with pytest.raises(ValueError, match="nothing is left"):
            f1(answer, reference)
        return
    shared = sum(min(written.count(word), wanted.count(word)) for word in set(written))
    if not shared:
        assert f1(answer, reference) == 0
        return
    precision = shared / len(written)
    recall = shared / len(wanted)
    assert f1(answer, reference) == pytest.approx(2 * precision * recall / (precision + recall))


def test_the_best_reference_counts_and_an_article_alone_is_an_error_under_quasi():
    assert f1("yes yes", ["yes yes yes"]) == pytest.approx(0.8)  # sets would give 1
    assert f1("Paris", ["Rome", "Paris"]) == 1
    assert exact_match("Paris", ["Rome", "Paris"])
    with pytest.raises(ValueError, match=r"nothing is left of the reference 'A'.*use 'strip'"):
        exact_match("the", "A", "quasi")
    assert exact_match(" A", "A")
    with pytest.raises(ValueError, match="normalization must be one of"):
        exact_match("A", "A", "squad")
