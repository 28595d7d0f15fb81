"""Data that models write: the teacher's answers, or what the student samples as it is trained.

Sources: Kim and Rush 2016, "Sequence-Level Knowledge Distillation"; Agarwal et al. 2024 (GKD).
"""

import math
from collections.abc import Iterator, Sequence
from random import Random

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from course_pkg.common.arguments import require_between, require_integer, text_list
from course_pkg.finetuning.batches import Batch, collate
from course_pkg.finetuning.conversations import (
    Conversation,
    Message,
    Problem,
    ProblemReport,
    RecordError,
)
from course_pkg.finetuning.formats import chat_prompt
from course_pkg.finetuning.masking import IGNORE_INDEX, TokenizedExample
from course_pkg.finetuning.records import ReadResult
from course_pkg.studies.compression.distillation import Distillation, evaluating


@torch.no_grad()
def sample_examples(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    prompts: Sequence[str],
    *,
    max_new_tokens: int = 64,
    temperature: float = 1.0,
    seed: int = 0,
) -> list[TokenizedExample]:
    """What a model answers to prompts, with labels on the answers; temperature 0 is greedy."""
    prompts = text_list(prompts, "prompt")
    require_integer(max_new_tokens, "max_new_tokens")
    require_between(temperature, "temperature", 0, math.inf, closed=True)
    draws = {"do_sample": temperature > 0}
    if temperature > 0:
        draws |= {"temperature": float(temperature), "top_k": 0, "top_p": 1.0}
    inputs = tokenizer(
        [chat_prompt(prompt, tokenizer) for prompt in prompts],
        return_tensors="pt",
        padding=True,
        padding_side="left",
        add_special_tokens=False,
    ).to(model.device)
    with evaluating(model), torch.random.fork_rng(devices=range(torch.cuda.device_count())):
        torch.manual_seed(seed)
        output = model.generate(
            **inputs, max_new_tokens=max_new_tokens, pad_token_id=tokenizer.pad_token_id, **draws
        )  # (prompts, width + new tokens)
    width = inputs["input_ids"].shape[1]
    examples = []
    for row, ids in zip(inputs["attention_mask"], output, strict=True):
        prompt = ids[:width][row.bool()].tolist()
        answer = _until_end(ids[width:].tolist(), _end_tokens(model))
        labels = [IGNORE_INDEX] * len(prompt) + answer
        examples.append(TokenizedExample((*prompt, *answer), tuple(labels)))
    return examples


def _end_tokens(model: PreTrainedModel) -> set[int]:
    ends = model.generation_config.eos_token_id
    if ends is None:
        return set()
    return {ends} if isinstance(ends, int) else set(ends)


def _until_end(ids: list[int], ends: set[int]) -> list[int]:
    """The ids up to the first end token, with it; padding follows it."""
    stop = next((at for at, token in enumerate(ids) if token in ends), len(ids))
    return ids[: stop + 1]


def teacher_conversations(
    teacher: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    prompts: Sequence[str],
    *,
    batch_size: int = 8,
    max_new_tokens: int = 128,
    temperature: float = 0.0,
    seed: int = 0,
) -> ReadResult:
    """The teacher's answers as conversations, and a report of the prompts that are left out.

    Left out are empty answers, and those without an end token, from which a student would learn to
    stop in the middle. A conversation's id is its prompt's index.
    """
    prompts = text_list(prompts, "prompt")
    require_integer(batch_size, "batch_size")
    ends = _end_tokens(teacher)
    conversations: list[Conversation] = []
    problems: list[Problem] = []
    for start in range(0, len(prompts), batch_size):
        part = prompts[start : start + batch_size]
        examples = sample_examples(
            teacher,
            tokenizer,
            part,
            max_new_tokens=max_new_tokens,
            temperature=temperature,
            seed=seed + start,
        )
        for index, (prompt, example) in enumerate(zip(part, examples, strict=True), start=start):
            name = f"prompt {index}"
            answer = [token for token in example.labels if token != IGNORE_INDEX]
            try:
                if answer[-1] not in ends:
                    raise RecordError("too long", f"no end token in {max_new_tokens} tokens")
                text = tokenizer.decode(answer[:-1], clean_up_tokenization_spaces=False)
                turns = (Message("user", prompt), Message("assistant", text))
                conversations.append(Conversation(turns, name))
            except RecordError as error:
                problems.append(Problem(name, error.kind, error.detail))
    report = ProblemReport(len(prompts), len(conversations), tuple(problems))
    return ReadResult(tuple(conversations), report)


class OnPolicyBatches:
    """Batches without end for `train`, sampled from the student as it is just then.

    A run that resumes draws the earlier batches again. Train with sharded=False: shards are a copy.
    Source: Agarwal et al. 2024 (GKD), algorithm 1.

    Args:
        model: what is trained, with alpha=0, because the student's own samples are no labels.
        prompts: users' prompts, batch_size different ones of which make a batch of answers.
    """

    def __init__(
        self,
        model: Distillation,
        tokenizer: PreTrainedTokenizerBase,
        prompts: Sequence[str],
        *,
        batch_size: int = 4,
        max_new_tokens: int = 64,
        temperature: float = 1.0,
        seed: int = 0,
    ) -> None:
        if not isinstance(model, Distillation):
            raise TypeError(f"model must be a Distillation, got {type(model).__name__}")
        if model.alpha != 0:
            raise ValueError(
                f"alpha is {model.alpha}, but the student's own samples are no labels to learn: "
                "write Distillation(student, teacher, alpha=0)"
            )
        self.prompts = text_list(prompts, "prompt")
        if require_integer(batch_size, "batch_size") > len(self.prompts):
            raise ValueError(f"batch_size={batch_size} needs as many prompts, got {len(prompts)}")
        self.model = model
        self.tokenizer = tokenizer
        self.batch_size = batch_size
        self.sampling = {"max_new_tokens": max_new_tokens, "temperature": temperature}
        self.seed = seed

    def __iter__(self) -> Iterator[Batch]:
        rng = Random(self.seed)
        while True:
            prompts = rng.sample(self.prompts, self.batch_size)
            seed = rng.getrandbits(32)
            student = self.model.student
            examples = sample_examples(student, self.tokenizer, prompts, seed=seed, **self.sampling)
            yield collate(examples, self.tokenizer.pad_token_id)
