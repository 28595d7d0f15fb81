"""Playgrounds: fields, views, and texts that may hold anything."""

import html
import math
import re

import pytest

from course_pkg.acceleration.quantization.levels import affine_row, quantize_block
from course_pkg.metrics.bleu import corpus_bleu
from course_pkg.metrics.perplexity.likelihood import Likelihood
from course_pkg.metrics.rouge import rouge_l
from course_pkg.pages.labs.playgrounds import MODULES, playground
from course_pkg.pages.labs.playgrounds.markup import Safe, as_html, element, number, table
from course_pkg.pages.labs.playgrounds.playground import Field, WrongInput
from course_pkg.serving.constrained.automaton import build_automaton
from course_pkg.serving.constrained.json_schema import schema_expression
from course_pkg.serving.constrained.regex import parse
from course_pkg.studies.code_benchmarks.pass_estimators import pass_at_k

HOSTILE = "<img src=x onerror=alert(1)>\"'</div><script>alert(1)</script>"
TEXTS = ["", " ", HOSTILE, "\\(x\\) $y$", "\0\ud800", "𝄞 ﷽", "9" * 60, "-1", "nan", "inf", "1e999"]
TAG = re.compile(r"<(/?)([a-z]+)([^<>]*)>")
ALLOWED = set(
    ["b", "caption", "div", "i", "p", "small", "span", "table", "tbody", "td", "th", "thead", "tr"]
)


def text_of(view: str) -> str:
    return html.unescape(re.sub(r"<[^>]+>", " ", view))


def problem(view: str) -> str:
    paragraph = re.search(r'<p class="lab-wrong">(.*?)</p>', view)
    return html.unescape(paragraph[1]) if paragraph else ""


def require_clean(view: str) -> None:
    """Only tags that views make, each closed in its order, and no handler."""
    opened = []
    for close, name, attributes in TAG.findall(view):
        assert name in ALLOWED, name
        assert not re.search(r"\son[a-z]+\s*=", attributes), attributes
        if close:
            assert opened.pop() == name
        else:
            opened.append(name)
    assert opened == []


@pytest.mark.parametrize("name", MODULES)
def test_every_view_is_well_formed_and_any_text_in_any_field_stays_text(name):
    """The first view, any text, every choice and both limits of a number."""
    shown = playground(name)
    view = shown.default_view()
    assert shown.name == name and not problem(view) and len(text_of(view)) > 60
    require_clean(view)
    for field in shown.fields:
        values = [*TEXTS, *field.options]
        if field.kind == "integer":
            values += [str(field.low), str(field.high)]
        for value in values:
            require_clean(shown.show({field.name: value}))


def test_an_unknown_playground_is_an_error():
    with pytest.raises(ValueError, match="bleu"):
        playground("nosuch")


def test_a_value_outside_of_the_limits_is_named():
    orders = Field("n", "Orders", "integer", "1", low=1, high=4)
    kind = Field("n", "Kind", "choice", "a", options=("a", "b"))
    for field, text, said in (
        (orders, "5", "from 1 to 4, but '5'"),
        (orders, "x", "a whole number"),
        (kind, "c", "one of a, b, not 'c'"),
        (Field("n", "Text", "text", "", most=3), "four", "at most 3 characters, but 4"),
    ):
        with pytest.raises(WrongInput, match=re.escape(said)):
            field.value(text)


def test_lines_are_stripped_and_empty_ones_dropped():
    assert Field("n", "Lines", "lines", "").value(" a \n\n b") == ["a", "b"]


def test_bleu_says_which_precision_is_smoothed():
    values = {"hypothesis": "the cat", "references": "the dog", "order": "2"}
    assert text_of(playground("bleu").show({**values, "smoothing": "exp"})).count("smoothed") == 1
    assert "smoothed" not in text_of(playground("bleu").show({**values, "smoothing": "none"}))


def test_bleu_shows_the_librarys_numbers():
    view = text_of(
        playground("bleu").show({"hypothesis": "a cat sat on the mat", "smoothing": "exp"})
    )
    score = corpus_bleu(["a cat sat on the mat"], [["the cat is on the mat"]])
    assert f"&= {number(score.score)}" in view
    for matches, total in zip(score.matches, score.totals, strict=True):
        assert f"{matches} of {total}" in view
    assert "expected one or more lines" in problem(playground("bleu").show({"references": "\n"}))


def test_bleu_of_nothing():
    view = playground("bleu").show({"hypothesis": ""})
    assert not problem(view) and "&= 0" in text_of(view)


def test_rouge_marks_a_longest_common_subsequence():
    values = {"hypothesis": "b a c", "reference": "a b c"}
    view = playground("rouge").show(values)
    row = view[view.rindex("ROUGE-L") :]
    assert row.count("lab-match") == 2
    assert number(rouge_l("b a c", "a b c").fmeasure) in text_of(view)


def test_rouge_marks_stems_and_names_a_text_without_tokens():
    values = {"hypothesis": "two cats", "reference": "a cat runs", "stem": "yes"}
    view = playground("rouge").show(values)
    assert view.count("✓ cat<") == 2  # in ROUGE-1 and in ROUGE-L
    assert number(rouge_l("two cats", "a cat runs", stem=True).fmeasure) in text_of(view)
    assert "✓" not in playground("rouge").show({**values, "stem": "no"})
    assert "keeps only a–z" in problem(playground("rouge").show({"reference": "下雨了"}))
    assert not problem(playground("rouge").show({"reference": "..."}))


def test_perplexity_is_that_of_the_probabilities():
    view = text_of(playground("perplexity").show({"given": "1/4, 0.25 0.25"}))
    assert "e^{1.386} \\approx 4\\]" in view
    assert "-0" not in playground("perplexity").show({"given": "1 1"})
    wrong = ["0", "1.5", "a", "1/0", "1/00", "-1", "1_0", "٣", "1e999", "5e-324", "0.5 " * 13, ""]
    wrong.append("1e-999999999999")  # as a number, it would fill the memory
    for text in wrong:
        assert problem(playground("perplexity").show({"given": text})), text
    whole = Likelihood.of([math.log(0.5), math.log(1e-9)])
    view = text_of(playground("perplexity").show({"given": ".5 1e-9"}))
    assert number(whole.nll_per_token) in view and number(whole.bits_per_token) in view
    assert "4.472 \\cdot 10^{4}" in view  # 1 / sqrt(5e-10)


def test_pass_at_k_is_the_estimate():
    view = text_of(playground("pass-at-k").show({"samples": "20", "correct": "4", "k": "3"}))
    assert f"{pass_at_k(20, 4, 3):.4f}" in view
    for values in ({"correct": "11"}, {"k": "11"}):
        assert problem(playground("pass-at-k").show(values))


def test_quantization_shows_codes_and_errors():
    view = text_of(playground("quantization").show({"row": "1 -0.5 0.25", "book": "int4"}))
    block = quantize_block([1, -0.5, 0.25], "int4")
    for code, value in zip(block.codes, block.dequantize(), strict=True):
        assert f" {code} " in view and number(value) in view
    block = affine_row([1, -0.5, 0.3])
    view = text_of(playground("quantization").show({"row": "1 -0.5 0.3", "book": "affine int4"}))
    assert block.codes == [7, -8, 0] and "scale is 0.1, and the zero point -3" in view
    for code, value in zip(block.codes, block.dequantize(), strict=True):
        assert f" {code}  {code + 3:+d}  {number(value)} " in view
    assert problem(playground("quantization").show({"row": "1 x"}))
    assert not problem(playground("quantization").show({"row": "0 0"}))


def test_the_pool_shows_sharing_copies_and_what_lacks():
    shown = playground("blocks")
    view = shown.show({"commands": "new a 6\nfork a b\nmore b 1"})
    assert "block 2 is shared, so it is copied to 3" in text_of(view)
    assert "too few blocks are free (8)" in problem(shown.show({"commands": "new a 100"}))
    for tokens in ("0100000", "0001", "201", "²"):
        assert "1 to 200" in problem(shown.show({"commands": f"new a {tokens}"}))
    assert "no sequence 'z'" in problem(shown.show({"commands": "free z"}))
    assert "exists already" in problem(shown.show({"commands": "new a 1\nnew a 1"}))
    assert "expected “new a 10”" in problem(shown.show({"commands": "dance"}))
    assert "at most 12" in problem(shown.show({"commands": "new a 1\n" * 13}))


def test_the_timelines_are_those_of_the_simulator():
    shown = playground("scheduler")
    view = text_of(shown.show({"policy": "skip-join MLFQ"}))
    assert "to the last: 5.25 s" in view  # as on the page scheduling
    widths = re.findall(r'class="lab-timeline".*?</td>', shown.default_view())
    assert len(widths) == 4
    for row in widths:
        total = sum(float(width) for width in re.findall(r"width:([\d.]+)%", row))
        assert total <= 100.1
    assert "three whole numbers" in problem(shown.show({"lines": "1 2"}))
    assert "from 1 to 12" in problem(shown.show({"lines": "0 13 1"}))
    assert "1 to 8 lines" in problem(shown.show({"lines": ""}))


def test_the_automaton_follows_a_text():
    shown = playground("automaton")
    assert "lab-clipped" not in shown.show({"pattern": ".*", "text": "é\ud800"})
    view = text_of(shown.show({"pattern": "ab|cd", "text": "a"}))
    states = len(build_automaton(parse("ab|cd")).final)
    assert f"has {states} states" in view and "may not end here" in view and " b " in view
    assert "may not write it" in problem(shown.show({"pattern": "ab", "text": "x"}))
    assert "Pattern:" in problem(shown.show({"pattern": "(", "text": ""}))
    assert "Pattern:" in problem(shown.show({"pattern": "[a-z]{300}", "text": ""}))
    assert "nothing" in text_of(shown.show({"pattern": "a", "text": "a"}))


def test_the_automaton_of_a_schema():
    shown = playground("automaton")
    values = {"kind": "JSON Schema", "pattern": '{"enum": ["Mon", "Tue"]}', "text": '"T'}
    view = text_of(shown.show(values))
    states = len(build_automaton(schema_expression({"enum": ["Mon", "Tue"]})).final)
    assert f"has {states} states" in view and " u " in view and "may not end here" in view
    assert "this is no JSON" in problem(shown.show({**values, "pattern": "["}))
    assert "multipleOf" in problem(shown.show({**values, "pattern": '{"multipleOf": 2}'}))
    for text in TEXTS:
        require_clean(shown.show({**values, "pattern": text}))


def test_the_ring_marks_whole_sums_and_says_what_is_sent():
    shown = playground("ring")
    view = " ".join(text_of(shown.show({"lines": "1 2\n10 20", "done": "1"})).split())
    assert "rank 0 ✓ 11 ↓ 2 rank 1 10 ✓ 22 ↓" in view and "all-gather" in view
    last = shown.show({"lines": "1 2\n10 20", "done": "2"})
    assert last.count("lab-match") == 4 and "all sums" in text_of(last) and "↓" not in last
    assert "lab-match" not in shown.show({"lines": "0 0\n0 0", "done": "0"})
    assert text_of(shown.show({"lines": "5\n6\n7", "done": "4"})).count("empty") == 6
    assert "After 4 of 4 steps" in text_of(shown.show({"lines": "1\n2\n3", "done": "5"}))
    for lines in (
        "1_0\n1",
        "1",
        "1\n" * 7,
        "1 2\n3",
        "x\n1",
        "1e7\n1",
        " ".join(["1"] * 13) + "\n1",
    ):
        assert "Ranks: expected" in problem(shown.show({"lines": lines, "done": "0"})), lines


def test_markup_escapes_what_is_not_its_own():
    assert as_html(HOSTILE) == html.escape(HOSTILE)
    assert element("b", Safe("<i>x</i>"), title='"') == '<b title="&quot;"><i>x</i></b>'
    assert "&lt;" in table(("<",), [("<", "<")], caption="<")
    assert number(math.inf) == "inf"
