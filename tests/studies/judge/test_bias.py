"""The bias checks measure exactly the bias that a test judge has, and find none in a fair one."""

import pytest

from course_pkg.studies.judge.bias import (
    Change,
    Pair,
    PairVerdict,
    ScoreSpread,
    length_bias,
    pairwise_prompt,
    position_bias,
    repeatability,
    wording_spread,
)
from course_pkg.studies.judge.geval import JudgeError, JudgeTask
from tests.refusals import require_refusals

from .judges import TASK, RuleJudge

PAIRS = [Pair("Why?", "good", "bad"), Pair("How?", "bad", "good")]


def prefers_good(prompt):
    a_is_good = prompt.index("good") < prompt.index("bad")
    return {"A": 0.8, "B": 0.2} if a_is_good else {"A": 0.2, "B": 0.8}


def test_a_fair_judge_is_consistent_and_one_that_prefers_the_first_answer_is_not():
    found = position_bias(RuleJudge(prefers_good), PAIRS)
    assert found.first_place == pytest.approx(0.5)
    assert all(verdict.consistent for verdict in found.verdicts)
    assert [v.preference for v in found.verdicts] == pytest.approx([0.8, 0.2])
    found = position_bias(RuleJudge({"A": 0.9, "B": 0.1}), PAIRS)
    assert found.first_place == pytest.approx(0.9)
    assert not any(verdict.consistent for verdict in found.verdicts)
    assert [v.preference for v in found.verdicts] == pytest.approx([0.5, 0.5])
    assert not PairVerdict(0.5, 0.9).consistent and not PairVerdict(0.9, 0.1).consistent
    assert PairVerdict(0.1, 0.2).consistent


def test_the_pairwise_prompt_shows_the_answers_in_the_order_given():
    prompt = pairwise_prompt("Why?", "this one", "that one")
    assert prompt.index("Why?") < prompt.index("Answer A:\nthis one")
    assert prompt.index("this one") < prompt.index("Answer B:\nthat one")


def counts_words(prompt):
    words = len(prompt.partition("Answer:\n")[2].split("\n\n")[0].split())
    return {str(min(words, 5)): 1.0}


def test_a_judge_that_counts_words_has_length_bias():
    items = [{"Answer": "Boil it."}, {"Answer": "Boil"}]
    found = length_bias(
        RuleJudge(counts_words), TASK, items, "Answer", lambda text: f"{text} {text}"
    )
    assert found == Change((2.0, 1.0), (4.0, 2.0))
    assert found.mean == 1.5


def test_repeatability_reads_each_answer_and_counts_those_without_a_score():
    judge = RuleJudge(writes=["2", " 4\n", "It depends.", "3", "7"])
    found = repeatability(judge, TASK, {"Answer": "x"}, repeats=5, seed=3)
    assert found == ScoreSpread((2.0, 4.0, 3.0), unread=2)
    assert found.range == 2 and found.std == pytest.approx((2 / 3) ** 0.5)
    [(prompt, start, settings)] = judge.asked
    assert start == TASK.label and "Answer:\nx" in prompt
    assert settings == {"n": 5, "max_tokens": 8, "temperature": 1.0, "seed": 3}
    with pytest.raises(JudgeError, match=r"only 0 of 20 answers contain a score: \['Well"):
        repeatability(RuleJudge(writes=["Well."]), TASK, {"Answer": "x"})


def test_wordings_must_share_one_scale():
    other = JudgeTask("Please rate this answer.", "Clarity", "1 is confusing.")
    judge = RuleJudge(lambda prompt: {"4": 1.0} if "Please" in prompt else {"2": 1.0})
    assert wording_spread(judge, [TASK, other], {"Answer": "x"}).scores == (2.0, 4.0)
    seven = JudgeTask("Rate.", "Clarity", "1 is confusing.", tuple(range(1, 8)))
    for tasks in ([TASK], [TASK, seven]):
        with pytest.raises(ValueError, match="with the same scores"):
            wording_spread(judge, tasks, {"Answer": "x"})


def test_invalid_arguments_raise_an_error():
    fair = RuleJudge(prefers_good)
    items = [{"Answer": "Boil it."}]

    def lengthened(items, title, pad):
        return length_bias(RuleJudge(counts_words), TASK, items, title, pad)

    require_refusals(
        (lambda: position_bias(fair, []), "pairs is empty"),
        (lambda: position_bias(fair, [("Why?", "x", "y")]), "TypeError: pairs must be a list of"),
        (lambda: position_bias(fair, PAIRS[0]), "TypeError: pairs must be a list of Pair"),
        (lambda: position_bias(fair, [Pair("Why?", "x", " ")]), "answer B is empty"),
        (lambda: lengthened(items, "Answer", str.upper), "pad must return a longer text, got 'B"),
        (lambda: lengthened(items, "Summary", str.title), r"KeyError.*title must be one of \['Ans"),
        (lambda: lengthened([], "Answer", str.title), "items is empty"),
        (lambda: repeatability(fair, TASK, {"Answer": "x"}, repeats=1), "at least 2"),
        errors=(KeyError, TypeError, ValueError),
    )
