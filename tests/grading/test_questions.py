"""Questions as data: what is read, what is refused, the draws, and what they depend on."""

import random
import re
import shutil
import types
from pathlib import Path

import pytest

from course_pkg.grading.questions import registry
from course_pkg.grading.questions.answer_key import AnswerKey
from course_pkg.grading.questions.draws import draw_cases
from course_pkg.grading.questions.grading_session import GradingSession
from course_pkg.grading.questions.question import QuestionError, parse_questions
from tests.grading.small_assignment import QUESTIONS, answer_key

LARGE = "[question.double.property.large]\npoints = 2"


def test_defaults_come_from_the_names():
    questions = parse_questions("small", QUESTIONS).questions
    double = questions["double"]
    twice = questions["by-hand/twice"]
    assert [p.draw for p in double.properties] == ["double_small", "double_large"]
    assert (double.expected, twice.expected) == ("double_expected", "by_hand_twice_expected")
    assert [w.loses for w in double.wrong] == [("small", "large"), ("small", "large"), ("large",)]
    assert (double.points, double.properties[0].cases, twice.properties[0].cases) == (3, 3, 1)


WRITTEN_WRONGLY = (
    ("points = 2", "points = 0", "at least 1 point"),
    ("points = 2", "points = 2.5", "at least 1 point"),
    ("points = 2", "points = 2\nconstant = true", "what is constant is worth 1 point"),
    ("points = 2", "", "property large: 'points' is missing"),
    ('says = "you squared"', 'say = "you squared"', "unknown key 'say'"),
    ('loses = ["large"]', 'loses = ["huge"]', "expected some of \\['small', 'large'\\]"),
    ('because = "rounding"', "", "a tolerance needs a reason"),
    ('call = ["n"]', 'call = ["n"]\nvariant = "x"', "expected either `call` or `variant`"),
    ('patch = [["2 *", "3 *"]]', "", "expected one of `patch`, `wrap` and `answer`"),
    ('call = ["n"]', 'call = "run"', "`wrap` needs inputs with names"),
    ("[question.double]", "[question.double", "Expected"),
    ("setup =", 'gpu = "yes"\nsetup =', 'gpu is \'yes\'; expected one of "none", "optional"'),
    ("setup =", "gpu = true\nsetup =", "gpu is True; expected one of"),
)


def test_a_question_that_is_written_wrongly_is_refused():
    for old, new, message in WRITTEN_WRONGLY:
        assert old in QUESTIONS
        with pytest.raises(QuestionError, match=message):
            parse_questions("small", QUESTIONS.replace(old, new))


def test_an_assignment_without_questions_or_properties_is_refused():
    with pytest.raises(QuestionError, match="no questions"):
        parse_questions("small", "")
    with pytest.raises(QuestionError, match="no properties"):
        parse_questions("small", "[question.a]\nanswer = ''")


def test_a_function_that_cases_does_not_have_is_named():
    with pytest.raises(QuestionError, match=r"double: cases\.py has no function twice"):
        answer_key(('call = ["n"]', 'call = ["n"]\nexpected = "twice"'))


def test_the_old_text_of_a_patch_must_occur_once():
    for old, count in (("n", 3), ("4 *", 0)):
        with pytest.raises(QuestionError, match=rf"triple: '{old[0]}.*' occurs {count} times"):
            answer_key(('["2 *", "3 *"]', f'["{old}", "x"]'))


def test_a_patch_replaces_whole_words():
    for old in ("eturn 2", "retur", "def doubl"):
        with pytest.raises(QuestionError, match=f"triple: '{old}' cuts a word"):
            answer_key(('["2 *", "3 *"]', f'["{old}", "x"]'))


def test_an_answer_that_is_not_python_is_named_with_its_line():
    for old, new, message in (
        ("return 2 * n", "return 2 *", "double: the model answer is not Python: line 2: "),
        ('"3 *"', '"3 *)"', "double: wrong answer triple is not Python: line 2: "),
    ):
        with pytest.raises(QuestionError, match=message):
            answer_key((old, new))


def test_a_draw_or_a_right_value_that_raises_is_named():
    key = answer_key(double_small=lambda rng, size: 1 / size)
    with pytest.raises(QuestionError, match="double: double_small raised ZeroDivisionError"):
        draw_cases(key, key["double"], random.Random(0))
    key = answer_key(double_expected=lambda inputs: inputs["m"])
    with pytest.raises(QuestionError, match="double: double_expected raised KeyError: 'm'"):
        draw_cases(key, key["double"], random.Random(0))


def test_a_draw_gets_the_options_of_its_property_by_name():
    change = ("points = 1\nsays", "points = 1\noptions = { first = 50 }\nsays")
    key = answer_key(change, double_small=lambda rng, size, first: {"n": first + size})
    cases = draw_cases(key, key["double"], random.Random(0))
    assert [case.inputs["n"] for case in cases[:3]] == [50, 51, 52]
    with pytest.raises(QuestionError, match=r"double_small raised TypeError: .*'first'"):
        draw_cases(answer_key(change), key["double"], random.Random(0))


def test_a_comparator_that_can_not_be_built_names_the_question():
    for spec, message in (
        ('{ kind = "numbers" }', "kind is 'numbers'; expected one of number, whether, array"),
        ('{ kind = "number", tolerance = 1 }', "unexpected keyword argument 'tolerance'"),
        ('{ kind = "cases", name = "same" }', "no attribute 'same'"),
    ):
        key = answer_key(('{ kind = "number", rtol = 1e-9 }', spec))
        with pytest.raises(QuestionError, match=f"question double, property small: .*{message}"):
            draw_cases(key, key["double"], random.Random(0))


def test_cases_of_a_property_are_drawn_again_until_they_tell_every_wrong_answer():
    drawn = []

    def mostly_two(rng, size):  # 2 · 2 is 2²
        drawn.append(2 if rng.random() < 0.8 else 5)
        return {"n": drawn[-1]}

    key = answer_key(double_small=mostly_two)
    for seed in range(30):
        cases = draw_cases(key, key["double"], random.Random(seed))
        assert any(case.inputs == {"n": 5} for case in cases[:3])
    assert drawn.count(2) > 30


def test_a_wrong_answer_that_no_draw_tells_is_an_error_of_the_author():
    key = answer_key(double_small=lambda rng, size: {"n": 2})
    with pytest.raises(QuestionError, match="double/small: 200 draws don't tell square"):
        draw_cases(key, key["double"], random.Random(0))


def test_a_case_by_hand_has_one_draw():
    key = answer_key()
    assert len(draw_cases(key, key["by-hand/twice"], random.Random(0), {"n": 3})) == 1
    with pytest.raises(QuestionError, match="1 draws don't tell half"):
        draw_cases(key, key["by-hand/twice"], random.Random(0), {"n": 0})


def test_an_expected_value_that_does_not_pass_is_an_error_of_the_author():
    key = answer_key(double_expected=lambda inputs: float("nan"))
    with pytest.raises(QuestionError, match="expected is not equal to itself"):
        draw_cases(key, key["double"], random.Random(0))


@pytest.mark.parametrize(
    ("name", "old", "new", "same"),
    [
        ("questions.toml", 'hint = """', 'hint = """Note: ', True),
        ("cases.py", r"\brng\b", "random_numbers", True),
        ("cases.py", r"\nfrom ", "\n# a comment\nfrom ", True),
        ("cases.py", r"rng\.randint\(", "1 + rng.randint(", False),
        ("questions.toml", "points = 2, ", "points = 2, cases = 5, ", False),
    ],
)
def test_words_and_names_do_not_change_the_cases_and_draws_do(tmp_path, name, old, new, same):
    for file in ("questions.toml", "cases.py"):
        shutil.copy(registry.ASSIGNMENTS / "bleu" / file, tmp_path)
    before = cases_of_ada(tmp_path)
    text = (tmp_path / name).read_text("utf-8")
    (tmp_path / name).write_text(re.sub(old, new, text), "utf-8")
    assert (tmp_path / name).read_text("utf-8") != text
    assert (cases_of_ada(tmp_path) == before) is same


def cases_of_ada(folder: Path) -> dict[str, list]:
    code = compile((folder / "cases.py").read_text("utf-8"), "cases.py", "exec")
    cases = types.ModuleType("cases")
    exec(code, vars(cases))
    questions = parse_questions("bleu", (folder / "questions.toml").read_text("utf-8"))
    session = GradingSession("bleu", "ada", answers=AnswerKey(questions, cases))
    return {name: session.inputs(name) for name in session.questions}
