"""A run: ask a model for all items of a task that have no sample yet, and write its record.

The same command continues a run that was stopped, and asks again for items that failed.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Protocol

from transformers import PreTrainedTokenizerBase as Tokenizer

from course_pkg import __version__
from course_pkg.evaluation.continuation_scores import Progress
from course_pkg.evaluation.generation import OpenQuestion, score_answers
from course_pkg.evaluation.greedy import Generation
from course_pkg.evaluation.metric_registry import OF_ANSWERS
from course_pkg.evaluation.multiple_choice import ChoiceQuestion, ScoredQuestion
from course_pkg.evaluation.run_record import RunRecord, make_record, write_record
from course_pkg.evaluation.run_report import write_report
from course_pkg.evaluation.sample_log import open_log
from course_pkg.evaluation.samples import Answer, ItemRequest, Sample, make_requests
from course_pkg.evaluation.task import Task

Counted = Callable[[int, int], None]


class Model(Protocol):
    """What a run needs of a model; tokenizer: writes chats as texts, None if it takes messages."""

    tokenizer: Tokenizer | None

    @property
    def identity(self) -> Mapping[str, Any]:
        """What makes two runs runs of the same model."""
        ...

    def answers(
        self, task: Task, requests: Sequence[ItemRequest], progress: Progress
    ) -> Iterator[list[tuple[ItemRequest, Answer | Exception]]]:
        """The answer to each request, or its error, in any order; progress: gets the share."""
        ...


@dataclass(frozen=True)
class FinishedRun:
    """A finished run. asked: how many items this process asked for; the others had samples."""

    record: RunRecord
    asked: int


def _silent(done: int, total: int) -> None:
    pass


def run_task(
    task: Task, model: Model, folder: Path, *, limit: int | None = None, progress: Counted = _silent
) -> FinishedRun:
    """Ask a model for the items of a task; write its samples, record and report into a folder.

    Args:
        limit: ask for so many items only (`Task.chosen`).
        progress: gets the number of samples and of items, also within long work.

    Raises:
        RunError: the folder belongs to another run or another process.
        ServerError: the model's server stops answering.
    """
    requests = make_requests(task, tokenizer=model.tokenizer, limit=limit)
    identity = {"task": task.name, "task_hash": task.hash, "course_version": __version__}
    identity |= model.identity
    with open_log(folder, identity) as log:
        left = [
            request
            for request in requests
            if request.item.id not in log.samples or log.samples[request.item.id].error
        ]
        done = len(requests) - len(left)
        progress(done, len(requests))

        def within(share: float, before: int = done) -> None:
            progress(before + int(share * len(left)), len(requests))

        with closing(model.answers(task, left, within)) as answered:
            for answers in answered:
                log.append([sample_of(task, request, answer) for request, answer in answers])
                done += len(answers)
                progress(done, len(requests))
        samples = [log.samples[request.item.id] for request in requests]
        record = make_record(task, model.identity, samples, limit)
        write_record(record, folder)
        write_report(record, folder)
    return FinishedRun(record, len(left))


def sample_of(task: Task, request: ItemRequest, answer: Answer | Exception) -> Sample:
    """The sample of an answer; of an error, which has no score, it keeps the first line."""
    fields: dict[str, Any] = {}
    scores: dict[str, float] = {}
    error = None
    try:
        if isinstance(answer, Exception):
            error = answer
        elif isinstance(answer, ScoredQuestion):
            fields, scores = _choice(task, answer)
        else:
            fields, scores = _written(task, request, answer)
    except (TypeError, ValueError) as refusal:
        error = refusal
    message = None
    if error is not None:
        lines = str(error).strip().splitlines()
        message = f"{type(error).__name__}: {lines[0] if lines else 'no text'}"
    question = request.question
    asked: dict[str, Any]
    if isinstance(question, ChoiceQuestion):
        text = question.context
        asked = {"options": list(question.options), "answer": question.answer}
        asked["delimiter"] = question.delimiter
    else:
        text = question.prompt
        asked = {"references": list(question.references)}
    prompt = [dict(turn) for turn in request.turns] or text
    return Sample(request.item.id, request.item.group, prompt, asked, fields, scores, message)


def _choice(task: Task, scored: ScoredQuestion) -> tuple[dict[str, Any], dict[str, float]]:
    names = ["sum", "token", "character", "byte"]
    if task.premise is not None:
        names.append("pmi")
    options = [
        {
            "text": option.text,
            "log_prob": option.log_prob,
            "tokens": list(option.tokens),
            "log_probs": list(option.log_probs),
            "unconditional": option.unconditional,
            "merged": option.merged,
        }
        for option in scored.options
    ]
    answer = {"choice": scored.choice(task.normalization), "options": options}
    answer["writes_an_option"] = scored.writes_an_option
    return answer, {name: float(scored.correct(name)) for name in names}


def _written(
    task: Task, request: ItemRequest, written: Generation
) -> tuple[dict[str, Any], dict[str, float]]:
    question = request.question
    assert isinstance(question, OpenQuestion)
    [scored] = score_answers(
        [question],
        [written],
        rules=task.rules,
        normalization=task.normalization,
        metrics={name: OF_ANSWERS[name] for name in task.metrics},
    ).answers
    answer: dict[str, Any] = {"text": written.text, "finish": written.finish}
    answer["extracted"] = asdict(scored.extraction) if scored.extraction else None
    if written.notes:
        answer["notes"] = list(written.notes)
    scores = {"exact": float(scored.exact)}
    if scored.quasi is not None and scored.f1 is not None:
        is_extracted = scored.extraction is not None
        scores |= {"quasi": float(scored.quasi and is_extracted), "f1": scored.f1}
    return answer, scores | scored.metrics
