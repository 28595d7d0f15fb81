"""Losses that train a student to predict what a teacher predicts, from the logits of both::

    α · cross entropy with the labels + (1 − α) · T² · divergence of student and teacher at T

Sources: Hinton et al. 2015, section 2; Agarwal et al. 2024 (GKD), equation 1.
"""

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.modeling_outputs import CausalLMOutput

from course_pkg.adapters.argument_checks import require_model
from course_pkg.common.arguments import require_between, require_number
from course_pkg.finetuning.masking import IGNORE_INDEX

Divergence = Callable[[Tensor, Tensor], Tensor]  # of the student's and the teacher's logits


def forward_kl(student_logits: Tensor, teacher_logits: Tensor) -> Tensor:
    """KL(teacher ‖ student) in nats at each position: the student must cover what the teacher does.

    Args:
        student_logits, teacher_logits: (…, vocab); the result: (…,), in fp32 or better.

    >>> teacher, student = torch.tensor([[0.5, 0.25, 0.25], [0.25, 0.5, 0.25]]).log()
    >>> forward_kl(student, teacher) / math.log(2)  # 0.5 · log₂ 2 − 0.25 · log₂ 2
    tensor(0.2500)
    """
    student, teacher = _log_probabilities(student_logits, teacher_logits)
    return _kl(teacher, student)


def reverse_kl(student_logits: Tensor, teacher_logits: Tensor) -> Tensor:
    """KL(student ‖ teacher) in nats at each position: it must avoid what the teacher rules out.

    Source: Gu et al. 2024 (MiniLLM), section 2.1.
    """
    student, teacher = _log_probabilities(student_logits, teacher_logits)
    return _kl(student, teacher)


def generalized_jsd(student_logits: Tensor, teacher_logits: Tensor, beta: float = 0.5) -> Tensor:
    """The generalized Jensen-Shannon divergence in nats at each position; finite.

    β · KL(p_t ‖ m) + (1 − β) · KL(p_s ‖ m) with the mixture m = β · p_t + (1 − β) · p_s. At β = 0
    and 1 the formula is 0, so this returns the forward and the reverse KL divergence, as TRL does.

    >>> one, other = torch.tensor([[1.0, 0.0], [0.0, 1.0]]).log()
    >>> generalized_jsd(one, other) / math.log(2)  # they share no token: one bit, the most
    tensor(1.)
    """
    student, teacher = _log_probabilities(student_logits, teacher_logits)
    if not 0 <= require_number(beta, "beta") <= 1:
        raise ValueError(f"beta must be from 0 (forward KL) to 1 (reverse KL), got {beta}")
    if beta == 0:
        return _kl(teacher, student)
    if beta == 1:
        return _kl(student, teacher)
    # A token that both rule out counts 0 in _kl; the gradient of log(0 + 0) would be NaN.
    absent = student.isneginf() & teacher.isneginf()
    mixture = torch.logaddexp(
        teacher.masked_fill(absent, 0.0) + math.log(beta),
        student.masked_fill(absent, 0.0) + math.log1p(-beta),
    )  # (…, vocab)
    return beta * _kl(teacher, mixture) + (1 - beta) * _kl(student, mixture)


def distillation_loss(
    student_logits: Tensor,
    teacher_logits: Tensor,
    labels: Tensor,
    *,
    alpha: float = 0.5,
    temperature: float = 1.0,
    divergence: Divergence = forward_kl,
) -> Tensor:
    """α · cross entropy + (1 − α) · T² · divergence: the mean over the target tokens, in nats.

    Args:
        student_logits, teacher_logits: (batch, tokens, vocab), not shifted: i predicts label i + 1.
        labels: (batch, tokens), IGNORE_INDEX (-100) where the loss skips a token.
        alpha: the weight of the labels, 0 to 1.
        temperature: divides the divergence's logits alone.
        divergence: `forward_kl`, `reverse_kl`, or `partial(generalized_jsd, beta=0.1)`.

    >>> student, teacher = torch.zeros(1, 2, 2), torch.tensor([[[0.0, math.log(3)], [0.0, 0.0]]])
    >>> distillation_loss(student, teacher, torch.tensor([[0, 1]]), alpha=0.0)  # log 2 − H(¼, ¾)
    tensor(0.1308)
    """
    check_settings(alpha, temperature, divergence)
    _require_same_shape(student_logits, teacher_logits)
    if labels.shape != student_logits.shape[:-1]:
        raise ValueError(
            "labels must be (batch, tokens) for logits (batch, tokens, vocab), got "
            f"{tuple(labels.shape)} for {tuple(student_logits.shape)}"
        )
    targets = labels[:, 1:]  # the only shift
    chosen = targets != IGNORE_INDEX  # (batch, tokens - 1)
    # Only rows of the targets go on, so nothing at the others can reach the loss or the gradient.
    student = _at_least_fp32(student_logits[:, :-1][chosen])  # (targets, vocab)
    teacher = _at_least_fp32(teacher_logits.detach()[:, :-1][chosen])  # (targets, vocab)
    losses = student.new_zeros(len(student))
    if alpha > 0:
        losses = losses + alpha * F.cross_entropy(student, targets[chosen], reduction="none")
    if alpha < 1:
        distance = divergence(student / temperature, teacher / temperature)  # (targets,)
        losses = losses + (1 - alpha) * temperature**2 * distance
    return losses.mean() if len(losses) else student.sum()  # 0, of no rows


def check_settings(alpha: float, temperature: float, divergence: Divergence) -> None:
    """Raise ValueError or TypeError unless `distillation_loss` can take these settings."""
    if not 0 <= require_number(alpha, "alpha") <= 1:
        raise ValueError(f"alpha must be from 0 (teacher alone) to 1 (labels alone), got {alpha}")
    require_between(temperature, "temperature", 0, math.inf)
    if not callable(divergence):
        raise TypeError(
            f"divergence must be a function of both logits, got {divergence!r:.80}; give "
            "forward_kl, reverse_kl, or partial(generalized_jsd, beta=0.5)"
        )


def _log_probabilities(student_logits: Tensor, teacher_logits: Tensor) -> tuple[Tensor, Tensor]:
    _require_same_shape(student_logits, teacher_logits)
    student = _at_least_fp32(student_logits).log_softmax(-1)
    return student, _at_least_fp32(teacher_logits).log_softmax(-1)


def _kl(log_p: Tensor, log_q: Tensor) -> Tensor:
    """Σ p (log p − log q) over the last dimension; a token with p = 0 counts 0."""
    p = log_p.exp()
    return (p * (log_p - log_q).masked_fill(p == 0, 0.0)).sum(-1)


def _at_least_fp32(logits: Tensor) -> Tensor:
    return logits.to(torch.promote_types(logits.dtype, torch.float32))


def _require_same_shape(student_logits: Tensor, teacher_logits: Tensor) -> None:
    if student_logits.shape[-1] != teacher_logits.shape[-1]:
        sizes = (student_logits.shape[-1], teacher_logits.shape[-1])
        raise ValueError(
            f"the student predicts {sizes[0]} tokens and the teacher {sizes[1]}: both must have "
            "one tokenizer; if only the padding of the vocabulary differs, cut both, as in "
            f"logits[..., :{min(sizes)}]"
        )
    if student_logits.shape != teacher_logits.shape:
        raise ValueError(
            f"the student's logits are {tuple(student_logits.shape)} and the teacher's "
            f"{tuple(teacher_logits.shape)}: give both models the same tokens"
        )


class Distillation(nn.Module):
    """A student and its teacher, as one model whose loss is `distillation_loss`.

    `train` changes the student in place. The teacher is frozen, stays in eval mode, and isn't in
    checkpoints. For a held-out loss, evaluate `model.student`.
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
        """The loss, and the student's logits (batch, tokens, vocab); labels aren't shifted."""
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
            kind = type(model).__name__
            raise TypeError(f"the {name} must be a model of transformers, got {kind}")
        if model.config.is_encoder_decoder:
            raise ValueError(f"the {name} has an encoder, and labels shift: give causal models")
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
