"""Three ways to score lettered questions: they see the same question."""

from course_pkg.lm.tiny import tiny_model, tiny_tokenizer
from course_pkg.studies.likelihood_and_generation.lettered_questions import (
    LetteredQuestion,
    three_ways,
)
from tests.refusals import require_refusals

MODEL = tiny_model()
TOKENIZER = tiny_tokenizer()


def test_a_question_has_several_options_and_a_right_one():
    require_refusals(
        (lambda: LetteredQuestion("?", ("x",), 0), "give 2 to 10"),
        (lambda: LetteredQuestion("?", ("x", "y"), 2), "has answer 2, but 2 options"),
    )


def test_three_ways_see_the_same_question_and_score_other_answers():
    questions = [
        LetteredQuestion("Which is a color?", ("red", "seven"), 0, "a"),
        LetteredQuestion("Which is a number?", ("blue", "nine", "a dog"), 1, "b"),
    ]
    example = LetteredQuestion("Which is an animal?", ("cat", "tin"), 0)
    found = three_ways(MODEL, TOKENIZER, questions, [example], max_new_tokens=3)
    letters, lines = (way.questions[1].question for way in (found.letters, found.full_answers))
    asked = found.generation.answers[1].question
    shown = "Which is a number?\nA. blue\nB. nine\nC. a dog\nAnswer:"
    assert letters.context == asked.prompt
    assert letters.context.endswith("Answer: A\n\n" + shown)
    assert lines.context.endswith("Answer: A. cat\n\n" + shown)
    assert (letters.options, asked.references) == (("A", "B", "C"), ("B",))
    assert lines.options == ("A. blue", "B. nine", "C. a dog")
    assert found.accuracy()["letters"] == sum(found.correct()["letters"]) / 2
    chat = three_ways(MODEL, TOKENIZER, questions, [example], chat=True, max_new_tokens=1)
    assert chat.letters.questions[0].question.delimiter == ""
