"""A student and its teacher as one model, so that the trainer trains the student.

The trainer needs a model that returns a loss, so `train(Distillation(student, teacher), batches,
config)` is all of it. What the batches contain is up to the caller: given texts, or what
`generated_data` makes of the teacher's or the student's own answers.

Sources: Hinton et al. 2015; Agarwal et al. 2024 (GKD). Chapter: deployment/compression.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.modeling_outputs import CausalLMOutput

from course_pkg.adapters.argument_checks import require_model
from course_pkg.studies.compression.distillation import (
    Divergence,
    check_settings,
    distillation_loss,
    forward_kl,
)


class Distillation(nn.Module):
    """A student and its teacher, as one model whose loss is `distillation_loss`.

    `train(Distillation(student, teacher), batches, config)` trains the student in place. The
    teacher is frozen: its parameters require no gradient any more, and it stays in eval mode.
    Checkpoints hold what is trained, so not the teacher. For a held-out cross entropy, evaluate the
    student: `evaluate=lambda model: mean_loss(model.student, held_out)`.
    student, teacher: causal models of transformers with one vocabulary; the student may have
    adapters. alpha, temperature, divergence: as for `distillation_loss`.
    Raises TypeError for other models, ValueError for settings out of range, if the vocabularies
    differ, if a model is not causal, or if student and teacher share parameters.

    >>> from course_pkg.lm.load import load
    >>> model = Distillation(load("tiny", seed=1).model, load("tiny").model, alpha=0.0)
    >>> tokens = torch.tensor([[72, 105, 33]])
    >>> 0 < model(input_ids=tokens, labels=tokens).loss.item() < 0.1  # both know nothing yet
    True
    """

    def __init__(
        self,
        student: PreTrainedModel,
        teacher: PreTrainedModel,
        *,
        alpha: float = 0.5,
        temperature: float = 1.0,
        divergence: Divergence = forward_kl,
    ) -> None:
        super().__init__()
        check_settings(alpha, temperature, divergence)
        _check_models(student, teacher)
        self.student = student
        self.teacher = teacher.requires_grad_(False).eval()
        self.alpha = alpha
        self.temperature = temperature
        self.divergence = divergence

    @property
    def config(self):
        """The student's config."""
        return self.student.config

    def train(self, mode: bool = True) -> "Distillation":
        """Put the student into training mode, or eval mode; the teacher stays in eval mode."""
        super().train(mode)
        self.teacher.eval()
        return self

    def forward(self, labels: Tensor, **inputs: Tensor) -> CausalLMOutput:
        """The loss, and the student's logits (batch, tokens, vocab).

        labels: (batch, tokens), not shifted. inputs: what both models take, such as input_ids and
        attention_mask.
        """
        with torch.no_grad():
            teacher_logits = self.teacher(**inputs, use_cache=False).logits
        logits = self.student(**inputs, use_cache=False).logits
        loss = distillation_loss(
            logits,
            teacher_logits,
            labels,
            alpha=self.alpha,
            temperature=self.temperature,
            divergence=self.divergence,
        )
        return CausalLMOutput(loss=loss, logits=logits)


def _check_models(student: nn.Module, teacher: nn.Module) -> None:
    for name, model in (("student", student), ("teacher", teacher)):
        if not hasattr(require_model(model), "config"):
            raise TypeError(
                f"the {name} must be a model of transformers, got {type(model).__name__}"
            )
        if model.config.is_encoder_decoder:
            raise ValueError(
                f"the {name} is a {type(model).__name__}, an encoder and a decoder: the loss "
                "shifts its labels, so give causal models"
            )
    sizes = (student.config.vocab_size, teacher.config.vocab_size)
    if sizes[0] != sizes[1]:
        raise ValueError(
            f"the student has {sizes[0]} tokens and the teacher {sizes[1]}: both must have one "
            "tokenizer (then resize_token_embeddings can make them equal); otherwise, let the "
            "student learn from teacher_conversations"
        )
    shared = {id(p) for p in teacher.parameters()} & {id(p) for p in student.parameters()}
    if shared:
        raise ValueError(
            f"student and teacher share {len(shared)} parameters, so training would change the "
            "teacher: make the student from a copy, copy.deepcopy(teacher)"
        )


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """A block in which the model computes without dropout; then each part has its old mode."""
    modes = [(part, part.training) for part in model.modules()]
    model.eval()
    try:
        yield
    finally:
        for part, training in modes:
            part.training = training
