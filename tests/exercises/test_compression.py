"""`compression`: its numbers by hand, and the mark scheme."""

from course_pkg.grading.questions.answer_key import answer_key
from course_pkg.grading.questions.draws import draw_variant
from course_pkg.grading.questions.grading_session import GradingSession
from course_pkg.studies.deployment_plan.capacity import Traffic, capacity
from course_pkg.studies.scheduling.iteration_cost import CostModel
from tests.exercises.assignments import SOLUTIONS, notebook

STUDENTS = ("", *(f"student-{i}" for i in range(40)))
RATES = (  # seconds of a step, and of a prompt; the rates that the calculator gives, by limit
    (0.008, 0.060, {"time per token": "13.3", "cache": "15.1", "work": "16.7"}),
    (0.0025, 0.060, {"time per token": "15.6"}),
    (0.004, 0.032, {"time per token": "28.1"}),
    (0.008, 0.060 - 0.75 * 0.045, {"time per token": "30.5"}),
    (0.004, 0.032 - 0.75 * 0.023, {"time per token": "61.0"}),
)


def test_a_mistake_in_the_scale_by_hand_costs_nothing_in_the_codes():
    key = answer_key("compression")
    for student in ("ada", "bob", "eve"):
        session = GradingSession("compression", student)
        case = session.variant("by-hand")
        for wrong in key["by-hand/scale"].wrong:
            d = key.answer(key["by-hand/scale"], case, wrong)
            codes = key.answer(key["by-hand/codes"], case, None, {"scale": d})
            for question, value in (("by-hand/scale", d), ("by-hand/codes", codes)):
                session.inputs(question)
                session.record(question, [{"value": value}])
            assert session.verdict("by-hand/scale").earned == 0, (student, wrong.name)
            assert session.verdict("by-hand/codes").earned == 1, (student, wrong.name)


def test_by_hand_the_scale_is_negative_one_code_is_clamped_and_none_is_near_a_midpoint():
    for student in STUDENTS:
        case = draw_variant(answer_key("compression"), "by-hand", student)
        weights = case["first"] + case["second"]
        extreme = max(weights, key=abs)
        steps = [-8 * weight / extreme for weight in weights]
        assert extreme > 0, student
        assert sum(step + 8.5 > 16 for step in steps) == 1, student
        assert all(abs((step + 8) % 1 - 0.5) > 0.15 for step in steps), student


def test_the_mark_scheme_has_the_numbers_of_the_courses_calculator():
    scheme = notebook(SOLUTIONS, "compression").cells[-2].source
    traffic = Traffic.of(12.0, 2000, 150)
    for base, work, limits in RATES:
        cost = CostModel(base=base, sequences=work / 149)  # the first token comes with the prompt
        most = capacity(traffic, cost, cache_tokens=400_000, seconds_per_token=0.040)
        for limit, rate in limits.items():
            assert f"{most.by_limit[limit]:.1f}" == rate
            assert rate in scheme
        assert (
            most.limit == "time per token" or work < 0.020
        )  # with a prefix cache, memory is shared
