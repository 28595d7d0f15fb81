"""Schemas of Winogender's form: the data, who counts as a gotcha, and paired gaps."""

import pytest

from course_pkg.evaluation.multiple_choice import ChoiceQuestion, score_questions
from course_pkg.lm.load import load
from course_pkg.studies.safety.pronouns import (
    PRONOUNS,
    ScoredSchema,
    gender_gap,
    load_schemas,
    score_schemas,
)

SCHEMAS = load_schemas()


def scored(margin):
    """All sentences; margin: of schema, whether the answer is the occupation, and the pronoun."""
    return [
        ScoredSchema(schema, answer, pronoun, margin(schema, answer, pronoun))
        for schema in SCHEMAS
        for answer in (True, False)
        for pronoun in PRONOUNS
    ]


def test_gotcha_as_in_the_paper():
    """A plumber (0.7% women): "she" against the majority if the plumber is meant."""
    plumber = SCHEMAS[2]
    nurse = SCHEMAS[12]
    assert (plumber.occupation, nurse.occupation) == ("plumber", "nurse")
    assert ScoredSchema(nurse, True, "they", 1.0).gotcha is None
    for schema, majority in ((plumber, "he"), (nurse, "she")):
        for pronoun in ("he", "she"):
            for answer in (True, False):
                gotcha = (pronoun != majority) == answer
                assert ScoredSchema(schema, answer, pronoun, 1.0).gotcha is gotcha
    by_sentence = {}
    for each in scored(lambda *_: 1.0):
        by_sentence.setdefault((each.schema.occupation, each.refers_to_occupation), []).append(each)
    for pair in by_sentence.values():  # so that a gotcha and its counterpart share the sentence
        assert [each.gotcha for each in pair].count(True) == 1


def test_gaps_of_readers_who_understand_or_know_only_the_majority_or_lean_to_it():
    found = gender_gap(scored(lambda schema, answer, pronoun: 1.0 if answer else -1.0))
    assert {interval.estimate for interval in found.accuracy.values()} == {1.0}
    assert found.gap.estimate == found.gotcha_gap.estimate == found.pull.estimate == 0

    def margin(schema, answer, pronoun):
        if pronoun == "they":
            return 1.0
        return 1.0 if (schema.women_percent >= 50) == (pronoun == "she") else -1.0

    found = gender_gap(scored(margin))
    assert found.gotcha_gap.estimate == -1 and found.pull.estimate == 2
    assert found.accuracy["she"].estimate == 0.5 and found.gap.estimate == 0

    def margin(schema, answer, pronoun):
        women = schema.women_percent >= 50
        return 5.0 + (0.5 if (pronoun == "she") == women else -0.5)

    found = gender_gap(scored(margin))
    assert found.gap.estimate == found.gotcha_gap.estimate == 0
    assert found.pull.estimate == pytest.approx(1.0)


def test_margins_are_those_of_the_two_answers():
    model, tokenizer = load("tiny")
    [first, *_] = score_schemas(model, tokenizer, SCHEMAS[:1], ["she"])
    context = SCHEMAS[0].sentence(True, "she") + ' In this sentence, the word "she" refers to the'
    [asked] = score_questions(
        model, tokenizer, [ChoiceQuestion(context, ("carpenter", "customer"))]
    ).questions
    expected = asked.options[0].log_prob - asked.options[1].log_prob
    assert first.margin == pytest.approx(expected, abs=1e-3)


def test_bad_input_is_one_clear_error():
    model, tokenizer = load("tiny")
    with pytest.raises(ValueError, match="schemas is empty"):
        score_schemas(model, tokenizer, [])
    with pytest.raises(ValueError, match=r"lacks \{pronoun\}"):
        score_schemas(model, tokenizer, SCHEMAS, question="{sentence} Who?")
    only_he = [each for each in scored(lambda *_: 1.0) if each.pronoun == "he"]
    with pytest.raises(ValueError, match="not scored with 'she'"):
        gender_gap(only_he)
    few = [each for each in scored(lambda *_: 1.0) if each.schema in SCHEMAS[:3]]
    with pytest.raises(ValueError, match="independent items or groups"):
        gender_gap(few)
