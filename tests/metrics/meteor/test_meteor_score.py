import warnings
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from course_pkg.metrics.meteor import PARAMETERS, MeteorParameters, meteor
from course_pkg.metrics.meteor import meteor_score as meteor_module
from tests.refusals import require_refusals

texts = st.lists(
    st.sampled_from(["the", "cat", "cats", "sat", "on", "a", "mat", "mats", "sits", "."]),
    max_size=9,
).map(" ".join)
versions = st.sampled_from(sorted(PARAMETERS))
COPY = ("cat", "cat")
OWN = [{"cat", "feline"}, {"quick", "fast"}]


def score(hypothesis, references, **options):
    return meteor(hypothesis, references, **{"synonyms": None, **options})


def test_a_case_by_hand():
    # "the cat sat on the mat" / "on the mat sat the cat": all six words match in three chunks.
    result = score("on the mat sat the cat", "the cat sat on the mat")
    assert (result.precision, result.recall, result.chunks) == (1, 1, 3)
    assert result.penalty == pytest.approx(0.5 * (3 / 6) ** 3)
    assert result.score == pytest.approx(1 - 0.0625)
    # Three of the hypothesis's four words match three of the reference's six, in two chunks.
    result = score("the cat was mat", "the cat sat on the mat")
    assert (result.precision, result.recall, result.chunks) == (3 / 4, 3 / 6, 2)
    assert result.fmean == pytest.approx(10 * 0.75 * 0.5 / (0.5 + 9 * 0.75))
    assert result.score == pytest.approx(result.fmean * (1 - 0.5 * (2 / 3) ** 3))


@given(texts.filter(bool))
def test_a_copy_scores_1_minus_gamma_over_m_to_the_beta(text):
    words = len(text.split())
    assert score(text, text).score == pytest.approx(1 - 0.5 / words**3)
    assert score(text, text, version="1.5").score == pytest.approx(1)  # no penalty for copies
    assert score(text, f"{text} more", version="1.5").penalty > 0
    steep = replace(PARAMETERS["2005"], gamma=0.3, beta=1.5)
    assert score(text, text, version=steep).score == pytest.approx(1 - 0.3 / words**1.5)


@given(texts, st.lists(texts, min_size=1, max_size=4))
def test_with_several_references_the_best_counts_in_any_order(hypothesis, references):
    single = [score(hypothesis, reference).score for reference in references]
    best = score(hypothesis, references)
    assert best.score == max(single) == score(hypothesis, references[::-1]).score


def test_each_stage_adds_a_match_which_counts_less_in_version_1_5():
    hypothesis = "quick cats run"
    reference = "fast cat run"
    assert len(score(hypothesis, reference, stem=False).matches) == 1
    assert len(score(hypothesis, reference).matches) == 2
    result = score(hypothesis, reference, synonyms=OWN)
    assert [match.stage for match in result.matches] == ["synonym", "stem", "exact"]
    assert result.stages == ("exact", "stem", "synonym")
    assert score(hypothesis, reference, stem=False).stages == ("exact",)
    result = score("quick cats run", "fast cat run", version="1.5", synonyms=OWN)
    assert result.precision == pytest.approx((0.8 + 0.6 + 1) / 3)
    assert score("quick cats run", "fast cat run", synonyms=OWN).precision == 1


def test_function_words_count_less_if_the_version_has_a_delta():
    texts = ("the cat", "the dog")
    plain = score(*texts, version="1.5")
    weighted = score(*texts, version="1.5", function_words={"the"})
    assert plain.precision == pytest.approx(1 / 2)
    assert weighted.precision == pytest.approx(0.25 / (0.25 + 0.75))
    assert score(*texts, function_words={"the"}).precision == 1 / 2  # 2005 has no delta


def test_texts_without_matches_score_0_and_case_and_tokenizer_change_them():
    for texts in (("cat", "dog"), ("", "dog"), ("cat", ""), ("", ""), ("cat", ["dog", ""])):
        result = score(*texts)
        assert (result.score, result.matches, result.chunks) == (0, (), 0)
    assert score("The Cat.", "the cat .").precision == 1
    assert score("The Cat", "the cat", lowercase=False).score == 0
    assert score("cat.", "cat", tokenize="whitespace").score == 0


def test_missing_wordnet_gives_a_warning(monkeypatch):
    monkeypatch.setattr(meteor_module, "open_wordnet", lambda: None)
    with pytest.warns(UserWarning, match="WordNet is not installed"):
        result = meteor("a car", "an automobile")
    assert result.stages == ("exact", "stem")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        meteor("a car", "an automobile", synonyms=None)


def test_invalid_inputs_and_parameters_raise_an_error_that_names_them():
    require_refusals(
        ((None, "cat"), {}, "TypeError.*must be a string"),
        (("cat", []), {}, "ValueError.*references is empty"),
        (("cat " * 100_000, "cat"), {}, "ValueError.*100000 words.*sentences one by one"),
        (COPY, {"version": "2007"}, r"ValueError.*version must be one of 2005, 1\.5.*got '2007'"),
        (COPY, {"function_words": "the"}, "TypeError.*function_words"),
        (COPY, {"synonyms": "thesaurus"}, "ValueError.*synonyms must be"),
        (COPY, {"synonyms": 5}, "TypeError.*synonyms must be"),
        (COPY, {"synonyms": ["cat", "feline"]}, "TypeError.*set of synonyms"),
        of=lambda texts, options: score(*texts, **options),
        errors=(TypeError, ValueError),
    )
    wrong = ("alpha", 1.2), ("gamma", -1), ("beta", 0), ("delta", 2)
    for name, value in (*wrong, ("weights", (1, 2, 0)), ("weights", (1, 1))):
        with pytest.raises(ValueError, match="must be"):
            MeteorParameters(**{"alpha": 0.9, "beta": 3.0, "gamma": 0.5, name: value})
