"""The report of a run: one HTML page with no script and no network, made as `course eval`'s is.

It claims what the data show: a change of the loss on these validation examples, with an interval,
for one run. Chapter: finetuning/sft-settings.
"""

import math
from html import escape
from pathlib import Path

from course_pkg.common.files import write_atomically
from course_pkg.evaluation.run_report import FILE, facts, page
from course_pkg.finetuning.own_data import loss_chart
from course_pkg.finetuning.own_data.next_steps import next_steps
from course_pkg.finetuning.own_data.progress import duration
from course_pkg.finetuning.own_data.result import Result
from course_pkg.finetuning.own_data.validation import FEWEST, Sample, change

STYLE = """
h2 { font-size: 1.2rem; margin: 2rem 0 .5rem; }
h3 { font-size: 1rem; margin: 0; white-space: pre-wrap; }
.result { font-size: 1.1rem; }
.pair { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 17rem), 1fr));
  gap: 0 .8rem; }
.pair p { margin: .5rem 0 0; }
.pair pre { margin: .2rem 0 0; max-height: 22rem; overflow: auto; }
article { background: var(--card); border: 1px solid var(--line); border-radius: .4rem;
  margin: .6rem 0; padding: .7rem .8rem; }
dt { max-width: 38vw; }
ul { padding-left: 1.2rem; } li { margin: .2rem 0; }
"""


def write_report(result: Result, folder: Path) -> None:
    """Write the page into the run's folder, whole or not at all."""
    write_atomically(folder / FILE, report(result, folder).encode("utf-8", "replace"))


def report(result: Result, folder: Path) -> str:
    """The page of a run, as HTML. folder: of the adapter, for the commands."""
    chart = loss_chart.loss_chart(result.history, result.before.mean, result.kept)
    samples = "".join(map(_sample, result.samples))
    body = "\n".join(
        (
            f"<p class=result>{escape(summary(result))}</p>",
            _limits(result),
            "<h2>Loss</h2>",
            chart,
            "<p class=soft>Thin line: each training step. Thick line: its moving mean. The circle "
            "marks the step whose weights the adapter has.</p>",
            _evaluations(result),
            f"<h2>Samples</h2><p class=soft>{len(result.samples)} validation examples, drawn by "
            "the seed before training; greedy answers. […] marks an answer that was stopped by the "
            f"limit of tokens.</p>{samples}",
            f"<h2>Data</h2>{_data(result)}",
            f"<h2>Settings</h2>{_settings(result)}",
            f"<h2>Use it</h2>{_commands(result, folder)}",
        )
    )
    title = f"{result.settings['model']}, fine-tuned on {Path(result.data).name}"
    return page(title, body, STYLE + loss_chart.STYLE)


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
    found = change(result.before, result.after)
    if found is None:
        return f"{text} One validation example gives no interval."
    low, high = (100 * math.expm1(each) for each in (found.low, found.high))
    text += (
        f" A change of {100 * math.expm1(found.nats):+.1f}%, 95% interval {low:+.1f}% to "
        f"{high:+.1f}%, paired over {found.texts} examples"
    )
    if found.high < 0:
        return f"{text}: lower."
    return f"{text}: {'higher' if found.low > 0 else 'not clearly different'}."


def _limits(result: Result) -> str:
    """What the numbers don't show."""
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
    return f"<ul class=soft>{''.join(f'<li>{escape(point)}' for point in points)}</ul>"


def _evaluations(result: Result) -> str:
    rows = [(0, result.before.mean)]
    rows += [(each.step, each.value) for each in result.history.evaluations]
    cells = "".join(
        f"<tr><td class=n>{step}<td class=n>{loss:.3f}<td class=n>{math.exp(loss):.2f}"
        f"<td>{'kept' if step == result.kept else ''}"
        for step, loss in rows
    )
    head = "<tr><th class=n>step<th class=n>validation loss<th class=n>perplexity<th>"
    return (
        f"<details><summary>The validation losses as numbers</summary><div class=scroll>"
        f"<table>{head}{cells}</table></div></details>"
    )


def _sample(sample: Sample) -> str:
    texts = {"before": sample.before, "after": sample.after, "in your data": sample.reference}
    parts = "".join(
        f"<div><p class=soft>{name}</p><pre tabindex=0>\n{escape(text)}</pre></div>"
        for name, text in texts.items()
    )
    return (
        f"<article><p class=soft>{escape(sample.id)}</p><h3>{escape(sample.question)}</h3>"
        f"<div class=pair>{parts}</div></article>"
    )


def _data(result: Result) -> str:
    sizes = result.sizes
    found = {"file": f"{result.data} ({result.formats[0]})"}
    if result.validation_file is not None:
        found["validation file"] = f"{result.validation_file} ({result.formats[-1]})"
    found |= {
        "for training": f"{sizes.train} examples, {sizes.targets:,} tokens to learn in one pass",
        "for validation": f"{sizes.validation} examples, {sum(result.before.tokens):,} tokens",
        "tokens": f"{sizes.tokens:,}, of which {sizes.lost:,} were cut by the limit",
    }
    for name, lines in (("lost last answers", sizes.cut), ("left out", sizes.left_out)):
        if lines:
            found[name] = f"{len(lines)} examples: {', '.join(lines)}"
    return facts(found)


def _settings(result: Result) -> str:
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
    return facts(
        {
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
    )


def _commands(result: Result, folder: Path) -> str:
    settings = result.settings
    chat = result.formats[0] != "plain text"
    steps = next_steps(settings["model"], folder, settings["method"], chat)
    return "".join(
        f"<p class=soft>{name}</p><pre>{escape(chr(10).join(lines))}</pre>" for name, lines in steps
    )
