"""ROUGE of many texts: each kind has the scores of its function, with the options."""

from course_pkg.metrics.rouge import rouge_l, rouge_n
from course_pkg.metrics.rouge.rouge_metric import USUAL, text_scores
from tests.refusals import require_refusals

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
