"""The trainer changes the student alone, and the teacher computes as it did before."""

import pytest
import torch

from course_pkg.adapters.injection import inject, trainable_parameters
from course_pkg.adapters.lora import LoRAConfig
from course_pkg.finetuning.batches import collate
from course_pkg.finetuning.config import TrainConfig
from course_pkg.finetuning.masking import IGNORE_INDEX, TokenizedExample
from course_pkg.finetuning.trainer import train
from course_pkg.lm.tiny import tiny_model
from course_pkg.studies.compression.distillation import distillation_loss, reverse_kl
from course_pkg.studies.compression.distilling import Distillation

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
    with pytest.raises(ValueError, match=r"264 tokens and the teacher 259.*teacher_conversations"):
        Distillation(wider, teacher)
    with pytest.raises(ValueError, match=r"share 20 parameters"):
        Distillation(teacher, teacher)
    with pytest.raises(TypeError, match=r"load\(name\) returns two"):
        Distillation(("model", "tokenizer"), teacher)
    with pytest.raises(TypeError, match="teacher must be a model of transformers, got Linear"):
        Distillation(wider, torch.nn.Linear(1, 1))
    with pytest.raises(ValueError, match="alpha"):
        Distillation(tiny_model(1), teacher, alpha=-1)
    assert all(p.requires_grad for p in teacher.parameters()), "refused before anything changed"
    student = tiny_model(1)
    student.config.is_encoder_decoder = True
    with pytest.raises(ValueError, match="give causal models"):
        Distillation(student, teacher)
