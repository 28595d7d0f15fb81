"""One run of `course finetune`: from a file of examples to an adapter with a report.

The output folder is the adapter's own, in PEFT's format, with report.html, finetune.json, and
chat_template.jinja if all examples share a turn. A run that was killed goes on from its last
checkpoint, and ends with the same adapter as one that was not.
"""

import shutil
from datetime import UTC, datetime

import torch
from torch import nn
from transformers import PreTrainedTokenizerBase as Tokenizer

from course_pkg.adapters.injection import trainable_parameters
from course_pkg.adapters.methods import adapt, save
from course_pkg.adapters.own_tokenizer import TEMPLATE
from course_pkg.common.files import write_atomically
from course_pkg.evaluation.run_record import versions
from course_pkg.finetuning.batches import batches, count_targets
from course_pkg.finetuning.own_data import FinetuneError
from course_pkg.finetuning.own_data.data_file import DataFile, read_data
from course_pkg.finetuning.own_data.finetune_report import write_report
from course_pkg.finetuning.own_data.result import DataSizes, Result, open_folder, write_result
from course_pkg.finetuning.own_data.settings import FinetuneSettings
from course_pkg.finetuning.own_data.shared_turn import shared_turn
from course_pkg.finetuning.own_data.token_examples import (
    Split,
    TokenizedFile,
    given_split,
    repeated_answers,
    split_examples,
    tokenize_file,
)
from course_pkg.finetuning.own_data.training_progress import Progress, Say
from course_pkg.finetuning.own_data.validation_losses import (
    NEW_TOKENS,
    AnswerPair,
    example_losses,
    sampled,
    write_samples,
)
from course_pkg.finetuning.trainer import mean_loss, train
from course_pkg.finetuning.training_state import History
from course_pkg.lm.load import load

CHECKPOINTS = "checkpoints"
TYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


def finetune(
    settings: FinetuneSettings,
    *,
    resume: bool = False,
    say: Say = print,
    report: Say | None = None,
) -> Result:
    """Train an adapter on a file, and write it with its report into settings.output.

    Args:
        resume: go on with the run in that folder, which must have the same settings and data; if it
            is finished, its result is returned.
        say: prints what was recognized and found.
        report: prints the progress; None for none.
    """
    data = read_data(settings.data, settings.columns)
    say(_recognized(data))
    other = None
    if settings.validation is not None:
        other = read_data(settings.validation, settings.columns)
        say(_recognized(other))
    identity = settings.identity | {"data": data.sha256, "validation": other and other.sha256}
    with open_folder(settings.output, identity, resume) as finished:
        if finished is not None:
            say(f"the run in {settings.output} is finished; nothing is left to do")
            return finished
        result = _run(settings, data, other, resume, say, report)
        write_report(result, settings.output)
        write_result(settings.output, identity, result)
        shutil.rmtree(settings.output / CHECKPOINTS, ignore_errors=True)
    return result


def _recognized(data: DataFile) -> str:
    count = len(data.examples)
    text = f"{data.path}: {count} {'example' if count == 1 else 'examples'}, {data.format}"
    return f"{text}; not used: {', '.join(data.unused)}" if data.unused else text


def _run(
    settings: FinetuneSettings,
    data: DataFile,
    other: DataFile | None,
    resume: bool,
    say: Say,
    report: Say | None,
) -> Result:
    model: nn.Module
    if settings.dtype not in TYPES:
        raise FinetuneError(f"--dtype {settings.dtype}: expected {', '.join(TYPES)}")
    model, tokenizer = load(settings.model, device=settings.device, dtype=TYPES[settings.dtype])
    longest = getattr(model.config, "max_position_embeddings", None) or settings.max_length
    if settings.max_length > longest:
        raise FinetuneError(f"--max-length {settings.max_length}: the model takes {longest} tokens")
    data_files = [data] if other is None else [data, other]
    files = [tokenize_file(file, tokenizer, settings.max_length) for file in data_files]
    if other is None:
        split = split_examples(files[0].examples, settings.validation_share, settings.seed)
    else:
        split = given_split(files[0].examples, files[1].examples, str(other.path))
    if shared := shared_turn(data.examples):
        say(f"all examples have {shared}: the adapter's chat template adds it where it is missing")
    pad = tokenizer.eos_token_id if tokenizer.pad_token_id is None else tokenizer.pad_token_id
    train_batches = _batches(split.train, settings, pad, settings.seed)
    validation = _batches(split.validation, settings, pad, None)
    sizes = _sizes(split, files, sum(count_targets(model, batch) for batch in train_batches))
    _say_sizes(sizes, settings, say)

    before = example_losses(model, split.validation, pad)
    say(f"validation perplexity before training: {before.perplexity:.2f}")
    shown = _shown(split, tokenizer, longest, settings.seed)
    texts = [write_samples(model, tokenizer, shown)]

    parameters = sum(parameter.numel() for parameter in model.parameters())
    generator = torch.Generator().manual_seed(settings.seed)
    model = adapt(model, settings.adapter_config(), generator=generator)
    trained = sum(parameter.numel() for parameter in trainable_parameters(model).values())
    history = _train(model, train_batches, validation, settings, sizes, parameters, resume, report)

    peak = max(record.learning_rate for record in history.steps)
    after = example_losses(model, split.validation, pad)
    texts.append(write_samples(model, tokenizer, shown))
    save(model, settings.output)
    if shared is not None and isinstance(tokenizer.chat_template, str):
        template = shared.added_to(tokenizer.chat_template)
        write_atomically(settings.output / TEMPLATE, template)
    samples = tuple(
        AnswerPair(example.id, example.question, *pair, example.reference)
        for example, *pair in zip(shown, *texts, strict=True)
    )
    return Result(
        data=str(data.path),
        validation_file=None if other is None else str(other.path),
        formats=tuple(file.format for file in data_files),
        settings=settings.identity | {"alpha": settings.scale, "learning_rate": peak},
        sizes=sizes,
        history=history,
        before=before,
        after=after,
        samples=samples,
        kept=history.best.step if history.best else len(history.steps),
        trained=trained,
        parameters=parameters,
        versions=versions(),
        finished=datetime.now(UTC).isoformat(timespec="seconds"),
    )


def _batches(examples, settings: FinetuneSettings, pad: int, seed: int | None) -> list:
    pieces = [piece for example in examples for piece in example.pieces]
    return batches(pieces, settings.batch_size, pad, seed=seed)


def _sizes(split: Split, files: list[TokenizedFile], targets: int) -> DataSizes:
    return DataSizes(
        train=len(split.train),
        validation=len(split.validation),
        pieces=sum(len(example.pieces) for example in split.train),
        tokens=sum(file.tokens for file in files),
        targets=targets,
        lost=sum(file.lost for file in files),
        cut=tuple(line for file in files for line in file.cut),
        left_out=tuple(line for file in files for line in file.left_out),
        repeated=repeated_answers(split),
    )


def _say_sizes(sizes: DataSizes, settings: FinetuneSettings, say: Say) -> None:
    say(
        f"{sizes.train} examples for training, {sizes.validation} for validation; "
        f"{sizes.tokens} tokens, {sizes.lost} cut by --max-length {settings.max_length}"
    )
    for lines, what in ((sizes.cut, "without their last answers"), (sizes.left_out, "left out")):
        if lines:
            more = ", …" if len(lines) > 5 else ""
            say(f"too long, {what}: {len(lines)} ({', '.join(lines[:5])}{more})")


def _shown(split: Split, tokenizer: Tokenizer, longest: int, seed: int) -> list:
    fitting = [
        example
        for example in split.validation
        if len(tokenizer(example.prompt, verbose=False).input_ids) + NEW_TOKENS < longest
    ]
    return sampled(fitting, seed)


def _train(
    model: nn.Module,
    train_batches: list,
    validation: list,
    settings: FinetuneSettings,
    sizes: DataSizes,
    parameters: int,
    resume: bool,
    report: Say | None,
) -> History:
    config = settings.train_config(sizes.pieces, parameters)
    checkpoint = settings.output / CHECKPOINTS / "last.pt"
    last = checkpoint if resume and checkpoint.exists() else None
    progress = Progress(model, report)

    def evaluate(model: nn.Module) -> float:
        loss = mean_loss(model, validation)
        progress.evaluated(loss)
        return loss

    try:
        return train(
            model,
            train_batches,
            config,
            evaluate=evaluate,
            checkpoint=checkpoint,
            best_checkpoint=checkpoint.with_name("best.pt"),
            restore_best=True,
            resume_from=last,
            callback=progress,
        )
    except FloatingPointError as error:
        raise FinetuneError(
            f"{error}; the learning rate is {config.learning_rate:g} (--learning-rate)"
        ) from None
    except torch.OutOfMemoryError as error:
        raise FinetuneError(
            f"out of memory ({str(error).splitlines()[0]}): lower --batch-size or --max-length"
        ) from None
    finally:
        progress.close()
