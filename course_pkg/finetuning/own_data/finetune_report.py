"""The report of a run, one HTML page with no script and no network; commands that use the adapter.

It claims what the data show: a change of the loss on these validation examples, with an interval,
for one run.
"""

import math
import re
import shlex
from pathlib import Path

from course_pkg.common.files import write_atomically
from course_pkg.common.html_page import html_page
from course_pkg.finetuning.own_data.data_file import PLAIN
from course_pkg.finetuning.own_data.loss_chart import loss_chart
from course_pkg.finetuning.own_data.result import Result
from course_pkg.finetuning.own_data.training_progress import duration
from course_pkg.finetuning.own_data.validation_losses import FEWEST, change

FILE = "report.html"


def write_report(result: Result, folder: Path) -> None:
    """Write the page into the run's folder, whole or not at all."""
    write_atomically(folder / FILE, report(result, folder).encode("utf-8", "replace"))


def report(result: Result, folder: Path) -> str:
    """The page of a run, as HTML. folder: of the adapter, for the commands."""
    history = result.history
    losses = [(0, result.before.mean), *((e.step, e.value) for e in history.evaluations)]
    settings = result.settings
    chat = result.formats[0] != PLAIN
    return html_page(
        "finetune_report.html",
        title=f"{settings['model']}, fine-tuned on {Path(result.data).name}",
        summary=summary(result),
        limits=_limits(result),
        chart=loss_chart(history, result.before.mean, result.kept),
        evaluations=[(step, f"{loss:.3f}", f"{math.exp(loss):.2f}") for step, loss in losses],
        kept=result.kept,
        samples=result.samples,
        data=_data(result),
        settings=_settings(result),
        commands=next_steps(settings["model"], folder, settings["method"], chat),
    )


def summary(result: Result) -> str:
    """The validation perplexity before and after, and what its change shows, in sentences."""
    return _sentences(result).replace("-", "\N{MINUS SIGN}")


def _sentences(result: Result) -> str:
    before = result.before.perplexity
    after = result.after.perplexity
    text = f"Validation perplexity: {before:.2f} before, {after:.2f} after."
    repeated = result.sizes.repeated
    if 2 * repeated >= result.sizes.validation:
        text = (
            f"{repeated} of {result.sizes.validation} validation answers are in the training data, "
            f"whole or mostly, so their perplexity shows how well the adapter repeats them. {text}"
        )
    difference = change(result.before, result.after)
    if difference is None:
        return f"{text} One validation example gives no interval."
    low, high = (100 * math.expm1(nats) for nats in (difference.low, difference.high))
    text += (
        f" A change of {100 * math.expm1(difference.nats):+.1f}%, 95% interval {low:+.1f}% to "
        f"{high:+.1f}%, paired over {difference.texts} examples"
    )
    if difference.high < 0:
        return f"{text}: lower."
    return f"{text}: {'higher' if difference.low > 0 else 'not clearly different'}."


def _limits(result: Result) -> list[str]:
    last = len(result.history.steps)
    points = [
        "Perplexity says how probable the model finds the answers in your data. It doesn't say "
        "that its own answers are right: read samples, and evaluate on a task.",
        "The interval is for other examples of the same kind, drawn in the same way. This is one "
        "run, with one seed; another seed gives a slightly different adapter.",
    ]
    if result.kept < last:
        points.append(
            f"The adapter has the weights of step {result.kept} of {last}, chosen by the lowest "
            "validation loss. The same examples then measured it, so its perplexity is slightly "
            "too good."
        )
    texts = len(result.before.nats)
    if texts < FEWEST:
        points.append(
            f"{texts} validation examples are few: the interval rests on the normal distribution "
            f"and is then too narrow. Give {FEWEST} or more."
        )
    return points


def _data(result: Result) -> dict[str, str]:
    sizes = result.sizes
    rows = {"file": f"{result.data} ({result.formats[0]})"}
    if result.validation_file is not None:
        rows["validation file"] = f"{result.validation_file} ({result.formats[-1]})"
    rows |= {
        "for training": f"{sizes.train} examples, {sizes.targets:,} tokens to learn in one pass",
        "for validation": f"{sizes.validation} examples, {sum(result.before.tokens):,} tokens",
        "tokens": f"{sizes.tokens:,}, of which {sizes.lost:,} were cut by the limit",
    }
    for name, lines in (("lost last answers", sizes.cut), ("left out", sizes.left_out)):
        if lines:
            rows[name] = f"{len(lines)} examples: {', '.join(lines)}"
    return rows


def _settings(result: Result) -> dict[str, str]:
    settings = result.settings
    history = result.history
    steps = len(history.steps)
    passes = steps * settings["batch_size"] / result.sizes.pieces
    share = result.trained / result.parameters
    method = {"lora": "LoRA", "dora": "DoRA", "ia3": "IA³"}[settings["method"]]
    if settings["method"] != "ia3":
        rank = settings["rank"]
        method += f", rank {rank}, alpha {settings['alpha']:g}, on all linear layers"
    seconds = sum(record.seconds for record in history.steps)
    device = settings["device"] or "cpu"
    return {
        "model": f"{settings['model']}, {result.parameters:,} parameters, {settings['dtype']}",
        "adapter": f"{method}; {result.trained:,} trained parameters ({share:.2%})",
        "steps": f"{steps}, about {passes:.1f} passes; {settings['batch_size']} per step",
        "learning rate": f"{settings['learning_rate']:g} at its peak, then linear to 0",
        "longest": f"{settings['max_length']} tokens",
        "seed": str(settings["seed"]),
        "time": f"{duration(seconds)} in steps on {device}, {history.tokens_per_second:.0f} "
        "tokens to learn per second",
        "finished": result.finished,
        "versions": ", ".join(f"{name} {value}" for name, value in result.versions.items()),
    }


def next_steps(model: str, folder: Path, method: str, chat: bool) -> list[tuple[str, list[str]]]:
    """What each command is for, and the command, perhaps in several lines.

    `course serve` takes LoRA alone, so an adapter of another method is merged first. A chat is
    offered to an adapter that was trained on conversations.
    """
    base = [] if model == "smollm2-135m" else ["--model", model]
    name = re.sub(r"[^\w.-]+", "-", folder.resolve().name).strip("-.") or "adapter"
    adapter = str(folder)
    serve = [["course", "serve", *base, "--adapter", f"{name}={adapter}"]]
    if method != "lora":
        merged = f"{name}-merged"
        serve = [
            ["course", "export", adapter, "--base", model, "--format", "hf", "--output", merged],
            ["course", "serve", "--model", merged, "--served-model-name", name],
        ]
    task = ["course", "eval", "--task", "short-answers", *base]
    export = ["course", "export", adapter, "--base", model, "--format", "gguf"]
    steps = [
        ("serve", list(map(shlex.join, serve))),
        ("ask it", [_request(name, chat)]),
        ("evaluate", [shlex.join(task), shlex.join([*task, "--adapter", adapter])]),
        ("export", [shlex.join(export)]),
    ]
    if chat:
        steps.insert(0, ("chat", [shlex.join(["course", "chat", *base, "--adapter", adapter])]))
    return steps


def _request(model: str, chat: bool) -> str:
    path = "chat/completions" if chat else "completions"
    asked = '"messages": [{"role": "user", "content": "Hello!"}]' if chat else '"prompt": "Once"'
    return (
        f"curl http://127.0.0.1:8000/v1/{path} -H 'Content-Type: application/json' "
        f'-d \'{{"model": "{model}", {asked}, "max_tokens": 80}}\''
    )
