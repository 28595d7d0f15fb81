"""`compression`: its right values and its cases are those of the course's modules and of torch."""

from fractions import Fraction
from random import Random

import pytest
import torch
from scipy.spatial.distance import jensenshannon
from torch.nn import functional as F

from course_pkg.compression.semi_structured import semi_structured_weight
from course_pkg.compression.sparsity_patterns import SemiStructured
from course_pkg.deployment.capacity import Traffic, capacity
from course_pkg.grading.checks.compression import cases
from course_pkg.grading.contract.answer_key import answer_key
from course_pkg.grading.contract.draws import draw_variant
from course_pkg.grading.contract.grading_session import GradingSession
from course_pkg.quantization.gguf_blocks import write_gguf
from course_pkg.quantization.packing import pack
from course_pkg.serving.simulator import CostModel
from tests.exercises.assignments import SOLUTIONS, notebook, patched, points_lost

KEY = answer_key("compression")
BLOCKS = [draw_variant(KEY, "by-hand", name) for name in ("", *(f"student-{i}" for i in range(40)))]
SEEDS = range(20)


@pytest.mark.parametrize("case", BLOCKS[:8])
def test_the_block_by_hand_is_that_of_llama_cpp(case):
    block = torch.zeros(1, 32)
    block[0, :4] = torch.tensor(case["first"])
    block[0, 16:20] = torch.tensor(case["second"])
    written = write_gguf(block, "Q4_0")
    scale, codes = (KEY.expected(KEY[f"by-hand/{part}"], case) for part in ("scale", "codes"))
    assert scale == pytest.approx(max(block[0].tolist(), key=abs) / -8, rel=1e-3)
    stored = cases.by_hand_bytes_expected({"low": codes[:4], "high": codes[4:]})
    assert stored == written.codes[0, 2:6].tolist()
    assert written.codes[0, 6:].tolist() == [0x88] * 12  # zeros
    read = cases.by_hand_read_expected({"d": scale, "stored": stored})
    numbers = written.dequantize()[0]
    assert read == torch.cat([numbers[:4], numbers[16:20]]).tolist()


@pytest.mark.parametrize("scale", ["unsigned", "range"])
def test_a_mistake_in_the_scale_by_hand_costs_nothing_in_the_codes(scale):
    for name in ("ada", "bob", "eve"):
        session = GradingSession("compression", name)
        case = session.variant("by-hand")
        wrong = next(w for w in KEY["by-hand/scale"].wrong if w.name == scale)
        d = KEY.answer(KEY["by-hand/scale"], case, wrong)
        codes = KEY.answer(KEY["by-hand/codes"], case, None, {"scale": d})
        for question, value in (("by-hand/scale", d), ("by-hand/codes", codes)):
            session.inputs(question)
            session.record(question, [{"value": value}])
        assert session.verdict("by-hand/scale").earned == 0
        assert session.verdict("by-hand/codes").earned == 1


@pytest.mark.parametrize("case", BLOCKS)
def test_by_hand_the_scale_is_negative_one_code_is_clamped_and_none_is_near_a_midpoint(case):
    weights = case["first"] + case["second"]
    extreme = max(weights, key=abs)
    steps = [-8 * weight / extreme for weight in weights]
    assert extreme > 0
    assert sum(step + 8.5 > 16 for step in steps) == 1
    assert all(abs((step + 8) % 1 - 0.5) > 0.15 for step in steps)


@pytest.mark.parametrize("temperature", [1.0, 3.0])
def test_the_loss_and_its_gradient_are_those_of_torch(temperature):
    inputs = cases.distillation_gradient(Random(1), 2) | {"temperature": temperature}
    z = inputs["student"].double().requires_grad_()
    soft, target = ((x / temperature).log_softmax(1) for x in (z, inputs["teacher"].double()))
    kl = F.kl_div(soft, target, log_target=True, reduction="batchmean")
    alpha = inputs["alpha"]
    loss = alpha * F.cross_entropy(z, inputs["labels"]) + (1 - alpha) * temperature**2 * kl
    (gradient,) = torch.autograd.grad(loss, z)
    found = cases.distillation_expected(inputs)
    assert found[0] == pytest.approx(loss.item())
    torch.testing.assert_close(found[1], gradient)


@pytest.mark.parametrize("seed", SEEDS)
def test_the_direction_costs_nothing_where_the_temperature_or_the_mask_is_judged(seed):
    for draw in (cases.distillation_temperature, cases.distillation_masked):
        inputs = draw(Random(seed), 1)
        p, q = (
            (inputs[name] / inputs["temperature"]).softmax(1).nan_to_num(0.5)
            for name in ("student", "teacher")
        )
        torch.testing.assert_close((p * (p / q).log()).sum(1), (q * (q / p).log()).sum(1))


@pytest.mark.parametrize("seed", SEEDS)
def test_the_divergence_between_is_that_of_scipy(seed):
    inputs = cases.jsd_zeros(Random(seed), seed % 3)
    distance = jensenshannon(inputs["teacher"], inputs["student"])
    assert cases.jsd_expected(inputs) == pytest.approx(distance**2)


def test_a_student_that_rules_out_a_token_is_far_forward_and_one_that_adds_one_is_far_reverse():
    inputs = {"teacher": [0.5, 0.5, 0.0], "students": [[1.0, 0.0, 0.0], [0.3, 0.3, 0.4]]}
    assert cases.choose_expected(inputs) == (1, 0)


@pytest.mark.parametrize("seed", SEEDS)
def test_sizes_and_sparsities_are_those_that_floats_get_wrong(seed):
    for size in range(3):
        for draw in (cases.count_exact, cases.count_nearest, cases.count_half):
            inputs = draw(Random(seed), size)
            exact = Fraction(str(inputs["sparsity"])) * inputs["size"]
            found = cases.count_expected(inputs)
            assert -Fraction(1, 2) <= found - exact < Fraction(1, 2)
            assert (exact % 1 == Fraction(1, 2)) == (draw is cases.count_half)
            assert (exact % 1 == 0) == (draw is cases.count_exact)


@pytest.mark.parametrize(("n", "m"), [(2, 4), (1, 4), (3, 5), (2, 9)])
def test_bytes_are_those_of_a_stored_weight(n, m):
    columns = 8 * m
    stored = semi_structured_weight(torch.zeros(3, columns), SemiStructured(n, m), torch.float16)
    bits = pack(torch.zeros(3, columns, dtype=torch.int64), 1)
    inputs = {"rows": 3, "columns": columns, "value_bytes": 2, "n": n, "m": m}
    assert cases.bytes_expected(inputs) == (stored.nbytes, stored.values.nbytes + bits.nbytes)


@pytest.mark.parametrize(
    ("question", "old", "new", "points"),
    [
        ("distillation", "gradient = torch", "teacher += 1\n    gradient = torch", 1),
        ("distillation", "    count =", "    student[~counted] = 0\n    count =", 1),
        ("wanda", "    return", "    weight.abs_()\n    return", 1),
        ("wanda", "    return", "    batches[0] += 1\n    return", 2),
        ("mask", "    return", "    scores += 1\n    return", 1),
    ],
)
def test_a_changed_argument_costs_its_own_property(question, old, new, points):
    assert (
        points_lost("compression", question, patched("compression", question, old, new)) == points
    )


@pytest.mark.parametrize(
    ("question", "old", "new", "lost"),
    [
        ("distillation", "= (z / temperature)", "= (z / temperature).exp().log()", 1),
        ("choose", "return math.inf", "q = [max(b, 1e-12) for b in q]", 1),
        ("count", "Fraction(str(sparsity))", "Fraction(sparsity).limit_denominator(100)", 2),
        ("mask", "= scores.view", "= (scores - torch.arange(scores.shape[1]) / 999).view", 3),
        ("bytes", "math.ceil(kept * index_bits / 8)", "(kept * index_bits + 4) // 8", 1),
        ("bytes", "math.ceil(columns / 8)", "(columns + 4) // 8", 1),
        ("bytes", "(m - 1).bit_length()", "max(2, (m - 1).bit_length())", 2),
        ("bytes", "(m - 1).bit_length()", "min(4, (m - 1).bit_length())", 1),
    ],
)
def test_an_answer_that_is_right_for_most_numbers_loses_points(question, old, new, lost):
    answer = patched("compression", question, old, new)
    assert points_lost("compression", question, answer) == lost


@pytest.mark.parametrize(
    ("base", "work", "limits"),
    [
        (0.008, 0.060, {"time per token": "13.3", "cache": "15.1", "work": "16.7"}),
        (0.0025, 0.060, {"time per token": "15.6"}),
        (0.004, 0.032, {"time per token": "28.1"}),
        (0.008, 0.060 - 0.75 * 0.045, {"time per token": "30.5"}),
        (0.004, 0.032 - 0.75 * 0.023, {"time per token": "61.0"}),
    ],
)
def test_the_mark_scheme_has_the_numbers_of_the_courses_calculator(base, work, limits):
    scheme = notebook(SOLUTIONS, "compression").cells[-2].source
    cost = CostModel(base=base, sequences=work / 149)  # the first token comes with the prompt
    traffic = Traffic.of(12.0, 2000, 150)
    found = capacity(traffic, cost, cache_tokens=400_000, seconds_per_token=0.040)
    for limit, rate in limits.items():
        assert f"{found.by_limit[limit]:.1f}" == rate
        assert rate in scheme
    assert found.limit == "time per token" or work < 0.020  # with a prefix cache, memory is shared
