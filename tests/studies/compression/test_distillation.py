"""Divergences and the loss of distillation, and the student and its teacher as one model."""

import math
from functools import partial

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

from course_pkg.adapters.injection import inject, trainable_parameters
from course_pkg.adapters.lora import LoRAConfig
from course_pkg.finetuning.batches import collate
from course_pkg.finetuning.config import TrainConfig
from course_pkg.finetuning.masking import IGNORE_INDEX, TokenizedExample
from course_pkg.finetuning.trainer import train
from course_pkg.lm.tiny import tiny_model
from course_pkg.studies.compression.distillation import (
    Distillation,
    distillation_loss,
    forward_kl,
    generalized_jsd,
    reverse_kl,
)
from tests.refusals import require_refusals

VOCAB = 7
KINDS = {"forward": forward_kl, "reverse": reverse_kl, "jsd": partial(generalized_jsd, beta=0.3)}

every_kind = pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)


def pair(*shape, seed=0, scale=2.0):
    """The student's and the teacher's logits in fp64; the student's require a gradient."""
    generator = torch.Generator().manual_seed(seed)
    student, teacher = scale * torch.randn(2, *shape, generator=generator, dtype=torch.float64)
    return student.requires_grad_(), teacher


def labels_of(*shape, seed=0):
    return torch.randint(VOCAB, shape, generator=torch.Generator().manual_seed(seed))


def by_definition(p, q):
    """KL(p ‖ q) of two lists of probabilities, in plain Python."""
    return sum(a * math.log(a / b) for a, b in zip(p, q, strict=True) if a > 0)


@settings(max_examples=25)
@given(temperature=st.floats(0.3, 50), seed=st.integers(0, 99))
def test_the_gradient_is_the_temperature_times_the_difference_of_the_distributions(
    temperature, seed
):
    student, teacher = pair(1, 2, VOCAB, seed=seed)
    loss = distillation_loss(student, teacher, labels_of(1, 2), alpha=0.0, temperature=temperature)
    loss.backward()
    p_s, p_t = ((z[0, 0] / temperature).softmax(-1) for z in (student, teacher))
    torch.testing.assert_close(student.grad[0, 0], temperature * (p_s - p_t))


def test_the_divergences_are_those_of_the_papers():
    for beta in (0.1, 0.5, 0.8):
        student, teacher = (each.detach() for each in pair(VOCAB))
        p_s = student.softmax(-1).tolist()
        p_t = teacher.softmax(-1).tolist()
        mixture = [beta * t + (1 - beta) * s for s, t in zip(p_s, p_t, strict=True)]
        jsd = beta * by_definition(p_t, mixture) + (1 - beta) * by_definition(p_s, mixture)
        assert generalized_jsd(student, teacher, beta).item() == pytest.approx(jsd)
        assert forward_kl(student, teacher).item() == pytest.approx(by_definition(p_t, p_s))
        assert reverse_kl(student, teacher).item() == pytest.approx(by_definition(p_s, p_t))
        other = generalized_jsd(teacher, student, 1 - beta)
        assert other.item() == pytest.approx(jsd), "swapping the models mirrors beta"


def test_at_its_ends_the_jsd_is_a_kl_divergence():
    student, teacher = (each.detach() for each in pair(VOCAB))
    assert torch.equal(generalized_jsd(student, teacher, 0), forward_kl(student, teacher))
    assert torch.equal(generalized_jsd(student, teacher, 1), reverse_kl(student, teacher))


@every_kind
def test_equal_distributions_differ_by_0_wherever_their_logits_are(kind):
    _, teacher = pair(3, VOCAB)
    torch.testing.assert_close(kind(teacher + 1000, teacher), torch.zeros(3).double())


@every_kind
def test_low_precision_logits_are_compared_in_fp32(kind):
    student, teacher = (each.detach().bfloat16() for each in pair(1, 4, VOCAB))
    labels = labels_of(1, 4)
    loss = distillation_loss(student, teacher, labels, divergence=kind, alpha=0.5)
    assert loss.dtype is torch.float32
    exact = distillation_loss(student.double(), teacher.double(), labels, divergence=kind)
    assert loss.item() == pytest.approx(exact.item(), rel=1e-5)


@every_kind
def test_a_vocabulary_padded_with_minus_infinity_changes_neither_loss_nor_gradient(kind):
    student, teacher = pair(2, 4, VOCAB)
    labels = labels_of(2, 4)
    expected = distillation_loss(student, teacher, labels, divergence=kind)
    [gradient] = torch.autograd.grad(expected, student)
    padding = torch.full((2, 4, 3), -torch.inf, dtype=torch.float64)
    padded = torch.cat([student, padding], -1)
    loss = distillation_loss(padded, torch.cat([teacher, padding], -1), labels, divergence=kind)
    torch.testing.assert_close(loss, expected)
    torch.testing.assert_close(torch.autograd.grad(loss, student)[0], gradient)


def test_the_jsd_is_finite_where_only_one_model_rules_a_token_out():
    student, teacher = pair(VOCAB)
    with torch.no_grad():
        student[0] = teacher[1] = -torch.inf
    assert forward_kl(student, teacher).isinf() and reverse_kl(student, teacher).isinf()
    loss = generalized_jsd(student, teacher)
    loss.backward()
    assert loss.isfinite() and student.grad.isfinite().all() and student.grad.any()


@pytest.mark.parametrize("garbage", [math.nan, -math.inf])
@every_kind
def test_what_the_logits_of_masked_positions_are_does_not_matter(kind, garbage):
    student, teacher = pair(2, 5, VOCAB)
    labels = labels_of(2, 5)
    labels[0, 3:] = labels[1, :2] = IGNORE_INDEX
    expected = distillation_loss(student, teacher, labels, divergence=kind)
    [gradient] = torch.autograd.grad(expected, student)
    skipped = torch.ones(2, 5, dtype=torch.bool)
    skipped[:, :-1] = labels[:, 1:] == IGNORE_INDEX  # position i predicts label i + 1
    with torch.no_grad():
        student[skipped] = teacher[skipped] = garbage
    loss = distillation_loss(student, teacher, labels, divergence=kind)
    torch.testing.assert_close(loss, expected)
    [with_garbage] = torch.autograd.grad(loss, student)
    torch.testing.assert_close(with_garbage, gradient)
    assert not with_garbage[skipped].any() and with_garbage[~skipped].any()


@pytest.mark.parametrize("tokens", [1, 4])
@every_kind
def test_without_targets_the_loss_and_its_gradient_are_0(kind, tokens):
    student, teacher = pair(2, tokens, VOCAB)
    labels = torch.full((2, tokens), IGNORE_INDEX)
    labels[:, 0] = 3  # which nothing predicts
    loss = distillation_loss(student, teacher, labels, divergence=kind)
    loss.backward()
    assert loss.item() == 0
    torch.testing.assert_close(student.grad, torch.zeros_like(student))


def test_alpha_is_the_weight_of_the_cross_entropy():
    for alpha in (0.0, 0.3, 1.0):
        student, teacher = (each.detach() for each in pair(2, 5, VOCAB))
        labels = labels_of(2, 5)
        labels[0, 2] = IGNORE_INDEX
        cross_entropy = F.cross_entropy(student[:, :-1].flatten(0, 1), labels[:, 1:].flatten())
        kl = 4 * distillation_loss(student / 2, teacher / 2, labels, alpha=0.0)
        loss = distillation_loss(student, teacher, labels, alpha=alpha, temperature=2.0)
        torch.testing.assert_close(loss, alpha * cross_entropy + (1 - alpha) * kl)


def test_with_alpha_1_an_infinite_divergence_does_not_count():
    student, teacher = pair(1, 3, VOCAB)
    with torch.no_grad():
        student[..., 0] = -torch.inf
    labels = torch.tensor([[1, 2, 3]])
    assert distillation_loss(student, teacher, labels, alpha=1.0).isfinite()
    assert distillation_loss(student, teacher, labels, alpha=0.9).isinf()


def test_the_loss_of_a_batch_is_the_mean_over_all_its_targets():
    student, teacher = pair(3, 6, VOCAB)
    labels = labels_of(3, 6)
    labels[0, 2:] = labels[1] = IGNORE_INDEX
    loss = distillation_loss(student, teacher, labels)
    total = 0.0
    for row, targets in enumerate([1, 0, 5]):
        part = slice(row, row + 1)
        total += distillation_loss(student[part], teacher[part], labels[part]).item() * targets
    assert loss.item() == pytest.approx(total / 6)


def test_the_teacher_gets_no_gradient():
    student, teacher = pair(1, 3, VOCAB)
    teacher.requires_grad_()
    distillation_loss(student, teacher, labels_of(1, 3)).backward()
    assert teacher.grad is None and student.grad.any()


def test_bad_arguments_are_named():
    student, teacher = pair(2, 4, VOCAB)
    given = {"student_logits": student, "teacher_logits": teacher, "labels": labels_of(2, 4)}
    require_refusals(
        ({"alpha": 1.1}, "ValueError: alpha must be from 0"),
        ({"temperature": 0}, "ValueError: temperature must be above 0"),
        ({"divergence": "forward_kl"}, "TypeError: divergence must be a function"),
        ({"labels": torch.zeros(2, 3)}, r"ValueError: labels must be .* got \(2, 3\)"),
        ({"teacher_logits": torch.ones(2, 4, 8)}, r"ValueError.*7 tokens .* 8.*\[\.\.\., :7\]"),
        ({"teacher_logits": torch.ones(2, 3, 7)}, "ValueError.*same tokens"),
        ({"divergence": partial(generalized_jsd, beta=1.5)}, "ValueError: beta must be from 0"),
        of=lambda change: distillation_loss(**given | change),
        errors=(TypeError, ValueError),
    )


CONFIG = TrainConfig(steps=3, learning_rate=1e-2, progress=False)


def random_batches(count=3, seed=0):
    """Batches of two rows of other lengths, with a masked start."""
    generator = torch.Generator().manual_seed(seed)
    batches = []
    for _ in range(count):
        examples = []
        for length in (9, 6):
            ids = tuple(torch.randint(256, (length,), generator=generator).tolist())
            examples.append(TokenizedExample(ids, (IGNORE_INDEX,) * 3 + ids[3:]))
        batches.append(collate(examples, pad_token_id=256))
    return batches


def weights(model):
    return {name: p.detach().clone() for name, p in model.named_parameters()}


def same(one, other):
    return all(torch.equal(one[name], other[name]) for name in one)


def models(**settings):
    student = tiny_model(seed=1)
    teacher = tiny_model(seed=0)
    return student, teacher, Distillation(student, teacher, **settings)


def test_training_changes_the_student_and_leaves_the_teacher_as_it_is():
    student, teacher, model = models()
    before = weights(student), weights(teacher)
    train(model, random_batches(), CONFIG)
    assert not same(weights(student), before[0])
    assert same(weights(teacher), before[1])
    assert all(p.grad is None for p in teacher.parameters())


def test_the_teacher_is_neither_trained_nor_in_a_checkpoint(tmp_path):
    student, _, model = models()
    names = {f"student.{name}" for name, _ in student.named_parameters()}
    assert trainable_parameters(model).keys() == names
    train(model, random_batches(), CONFIG, checkpoint=tmp_path / "run.pt")
    content = torch.load(tmp_path / "run.pt", weights_only=True)
    assert content["weights"].keys() == names
    assert len(content["optimizer"]["state"]) == len(names)


def test_with_alpha_1_the_student_learns_exactly_what_it_would_learn_alone():
    student, _, model = models(alpha=1.0)
    alone = tiny_model(seed=1)
    ours = train(model, random_batches(), CONFIG)
    theirs = train(alone, random_batches(), CONFIG)
    for step, expected in zip(ours.steps, theirs.steps, strict=True):
        assert step.loss == pytest.approx(expected.loss, rel=1e-5)
        assert step.tokens == expected.tokens
    for name, weight in weights(student).items():
        torch.testing.assert_close(weight, weights(alone)[name], rtol=1e-3, atol=1e-4)


def test_the_loss_is_the_distillation_loss_of_the_settings():
    settings = {"alpha": 0.3, "temperature": 2.0, "divergence": reverse_kl}
    student, teacher, model = models(**settings)
    batch = random_batches(1)[0]
    inputs = {name: tensor for name, tensor in batch.items() if name != "labels"}
    logits = student(**inputs).logits
    expected = distillation_loss(logits, teacher(**inputs).logits, batch["labels"], **settings)
    assert model(**batch).loss.item() == pytest.approx(expected.item())


def test_the_teacher_stays_in_eval_mode():
    _, teacher, model = models()
    teacher.config.attention_dropout = 0.5
    for layer in teacher.model.layers:
        layer.self_attn.attention_dropout = 0.5
    batch = random_batches(1)[0]
    assert model.train() is model
    assert model.student.training and not any(part.training for part in teacher.modules())
    assert model(**batch).loss.item() == model(**batch).loss.item()
    assert not model.eval().student.training


def test_a_student_with_an_adapter_trains_only_that():
    student = tiny_model(seed=1)
    inject(student, LoRAConfig(rank=2, target_modules=["q_proj"]))
    model = Distillation(student, tiny_model())
    before = weights(model)
    train(model, random_batches(), CONFIG)
    changed = {
        name for name, weight in weights(model).items() if not torch.equal(weight, before[name])
    }
    assert changed == set(trainable_parameters(model)) and len(changed) == 4


def test_bad_models_are_refused():
    teacher = tiny_model()
    wider = tiny_model()
    wider.resize_token_embeddings(264, mean_resizing=False)
    encoder = tiny_model(1)
    encoder.config.is_encoder_decoder = True
    require_refusals(
        (wider, teacher, "ValueError: .*264 tokens and the teacher 259.*teacher_conversations"),
        (teacher, teacher, "ValueError: .*share 20 parameters"),
        (("model", "tokenizer"), teacher, r"TypeError: .*load\(name\) returns two"),
        (wider, torch.nn.Linear(1, 1), "TypeError: .*teacher must be a model of .*, got Linear"),
        (encoder, teacher, "ValueError: .*give causal models"),
        of=Distillation,
        errors=(TypeError, ValueError),
    )
    with pytest.raises(ValueError, match="alpha"):
        Distillation(tiny_model(1), teacher, alpha=-1)
    assert all(p.requires_grad for p in teacher.parameters()), "refused before anything changed"
