"""G-Eval: the parts of the prompt, reading a judge's answer, and the weighted score."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from course_pkg.studies.judge.geval import (
    JudgeError,
    JudgeTask,
    add_up,
    ask,
    build_prompt,
    g_eval,
    generate_steps,
    read_option,
)
from tests.refusals import require_refusals

from .judges import RuleJudge

TASK = JudgeTask("Rate a summary.", "Coherence", "1 is a heap, 5 is well ordered.")
NO_PROBABILITIES = RuleJudge(None, ["It depends."])
TEXTS = {"Source": "It rained all day.", "Summary": "Rain."}


def test_the_prompt_contains_task_criteria_steps_and_texts_in_this_order():
    task = JudgeTask("Rate a summary.", "Coherence", "1 is a heap.", steps="1. Read it.")
    prompt = build_prompt(task, TEXTS)
    parts = ("Rate a summary.", "Coherence (1-5): 1 is a heap.", "1. Read it.")
    parts += ("Source:\nIt rained all day.", "Summary:\nRain.", "Evaluation form")
    positions = [prompt.index(part) for part in parts]
    assert positions == sorted(positions)
    assert "steps" not in build_prompt(TASK, TEXTS).lower()  # this task has none


def test_the_score_is_the_mean_weighted_by_renormalized_probabilities():
    # By hand: the scores have 0.1 + 0.1 + 0.3 = 0.5; (2·0.1 + 3·0.1 + 5·0.3) / 0.5 = 4.
    verdict = g_eval(RuleJudge({"2": 0.1, "3": 0.1, "5": 0.3}), TASK, TEXTS)
    assert verdict.score == pytest.approx(4.0)
    assert verdict.reading.probabilities == pytest.approx((0, 0.2, 0.2, 0, 0.6))
    assert verdict.reading.outside == pytest.approx(0.5)
    assert verdict.mode == 5
    # Variance: 0.2·4 + 0.2·1 + 0.6·1 = 1.6.
    assert verdict.std == pytest.approx(math.sqrt(1.6))
    assert verdict.reading.method == "probabilities" and verdict.reading.samples == 0
    judge = RuleJudge({"0": 1.0})
    g_eval(judge, JudgeTask("Rate.", "Truth", "0 is false.", (0, 1)), {"Text": "x"})
    assert judge.asked[0][1:] == ("Truth (0-1):", ("0", "1"))


def test_a_judge_without_probabilities_is_sampled_and_the_result_says_so():
    judge = RuleJudge(None, ["4", " 2", "no idea", "4\n"])
    verdict = g_eval(judge, TASK, TEXTS, samples=4, seed=7)
    assert verdict.score == pytest.approx((4 + 2 + 4) / 3)
    assert (verdict.reading.method, verdict.reading.samples) == ("samples", 4)
    assert verdict.reading.outside == pytest.approx(0.25)
    settings = {"n": 4, "max_tokens": 8, "temperature": 1.0, "seed": 7}
    assert judge.asked[-1][2] == settings


@given(st.dictionaries(st.sampled_from(["3", " 3", "\n3", "4", "The", "34", ""]), st.floats(0, 1)))
def test_only_spellings_of_a_score_are_added_up(tokens):
    found = add_up(tokens, ["3", "4", "5"])
    assert found["3"] == pytest.approx(sum(tokens.get(t, 0) for t in ("3", " 3", "\n3")))
    assert found["4"] == tokens.get("4", 0) and found["5"] == 0


def test_a_reply_is_parsed_strictly_to_options_that_differ():
    label = "Coherence (1-5): 3"
    for reply in ("3", " 3", "3.", "3\nIt is fine.", "**3**", label, "3/5", "3 out of 5", "- 3"):
        assert read_option(reply, list("12345"), TASK.label) == "3", reply
    for reply in ("3.5", "3-4", "35", "6", "3 out of 10", "3/10", "It is a 3", "", "three"):
        assert read_option(reply, list("12345"), TASK.label) is None, reply
    assert read_option("10", [str(s) for s in range(1, 11)]) == "10"  # not 1
    for options in ([], "AB", ["A", "A"]):
        with pytest.raises(ValueError, match="options must be a list of different strings"):
            ask(RuleJudge({"3": 1}), "prompt", "Score:", options)


def test_steps_are_written_from_the_task_only_and_stored_in_the_task():
    judge = RuleJudge(writes=["1. Read.\n2. Compare."])
    task = generate_steps(judge, TASK)
    assert task.steps == "1. Read.\n2. Compare."
    assert TASK.criteria in judge.asked[0][0] and "Rain" not in judge.asked[0][0]
    with pytest.raises(JudgeError, match="write them yourself"):
        generate_steps(RuleJudge(writes=[" "]), TASK)


def test_an_invalid_task_raises_an_error():
    fields = {"introduction": "Rate.", "name": "Truth", "criteria": "1 is false."}
    require_refusals(
        ({"introduction": ""}, "ValueError.*introduction is empty"),
        ({"scores": (1,)}, "ValueError.*two or more"),
        ({"scores": (3, 2, 1)}, "ValueError.*increasing order"),
        ({"scores": (True, 2)}, "TypeError.*must be integers"),
        of=lambda change: JudgeTask(**{**fields, **change}),
        errors=(TypeError, ValueError),
    )


def test_invalid_arguments_raise_an_error():
    for change, error, message in (
        ({"judge": ("model", "tokenizer")}, TypeError, "judge must be a judge"),
        ({"task": "Truth"}, TypeError, "task must be a JudgeTask, got 'Truth'"),
        ({"texts": {}}, ValueError, "texts is empty"),
        ({"texts": {"A": ""}}, ValueError, "A is empty"),
        ({"texts": ["a"]}, TypeError, "texts must be a dict of title and text"),
        ({"method": "logits"}, ValueError, "method must be one of auto"),
        ({"method": "samples", "samples": 0}, ValueError, "samples must be an integer"),
        ({"judge": NO_PROBABILITIES, "method": "probabilities"}, JudgeError, 'method="samples"'),
        ({"judge": NO_PROBABILITIES}, JudgeError, "none of 20 answers"),
        ({"judge": RuleJudge({})}, JudgeError, "probability 0 to all of"),
    ):
        arguments = {"judge": RuleJudge({"3": 1}), "task": TASK, "texts": {"A": "a"}} | change
        with pytest.raises(error, match=message):
            g_eval(**arguments)
