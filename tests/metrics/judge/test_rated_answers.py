"""The rated answers contain what course_pkg/data/README.md describes."""

from course_pkg.metrics.judge import load_rated_answers


def test_every_question_has_one_rated_answer_of_each_kind_on_the_scale():
    answers = load_rated_answers()
    assert len(answers) == 12
    for question in {answer.question for answer in answers}:
        kinds = {answer.kind for answer in answers if answer.question == question}
        assert kinds == {"good", "short", "false", "shuffled"}
    assert all(1 <= rating <= 5 for answer in answers for rating in answer.ratings)
