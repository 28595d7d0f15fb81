"""A page to look through the samples of a run: one HTML file, with no script and no network.

Read samples before you believe a score: an answer can be wrong through no fault of the model's,
when a stop string, a rule of extraction or the key is. All texts come from items and models, so all
are escaped, and a browser is told to run and to fetch nothing.
Chapter: evaluation/likelihood-and-generation.
"""

import math
from collections.abc import Iterable, Mapping
from html import escape
from pathlib import Path
from typing import Any

from course_pkg.common.files import write_atomically
from course_pkg.evaluation.run_record import RunRecord
from course_pkg.evaluation.samples import Sample

FILE = "report.html"
POLICY = "default-src 'none'; style-src 'unsafe-inline'"  # its own style, and nothing else
STYLE = """
:root { color-scheme: light dark; --page: #fff; --card: #f6f7f9; --ink: #1c1f24; --soft: #565d68;
  --line: #d5d9e0; --right: #17653a; --wrong: #a3321f; --mark: #ffe9a8; }
@media (prefers-color-scheme: dark) { :root { --page: #16181c; --card: #1f2228; --ink: #e6e8ec;
  --soft: #a6adb8; --line: #3a3f48; --right: #7fd6a1; --wrong: #ff9d8a; --mark: #5b4a12; } }
* { box-sizing: border-box; }
body { margin: 0 auto; max-width: 62rem; padding: 1.5rem 1rem 4rem; background: var(--page);
  color: var(--ink); font: 1rem/1.5 system-ui, sans-serif; overflow-wrap: anywhere; }
h1 { font-size: 1.6rem; margin: 0; }
p { margin: .4rem 0; }
.soft, dt, th { color: var(--soft); }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; margin: .6rem 0; }
th, td { text-align: left; padding: .25rem 1.2rem .25rem 0; border-top: 1px solid var(--line);
  vertical-align: baseline; }
td.n, th.n { text-align: right; }
.scroll { overflow-x: auto; }
dl { display: grid; grid-template-columns: max-content 1fr; gap: .1rem 1rem; margin: .6rem 0; }
dd { margin: 0; }
pre { white-space: pre-wrap; background: var(--page); border: 1px solid var(--line);
  border-radius: .3rem; padding: .6rem; margin: .4rem 0; font-size: .9rem; }
mark { background: var(--mark); color: inherit; }
fieldset { border: 1px solid var(--line); border-radius: .4rem; margin: 1.2rem 0 .8rem; }
label { margin-right: 1rem; white-space: nowrap; }
details { background: var(--card); border: 1px solid var(--line); border-radius: .4rem;
  margin: .4rem 0; padding: .5rem .8rem; }
summary { cursor: pointer; }
:is(summary, input):focus-visible { outline: .15rem solid var(--ink); outline-offset: .1rem; }
.right .state { color: var(--right); } .wrong .state, .failed .state { color: var(--wrong); }
.state { display: inline-block; min-width: 4rem; font-weight: 600; }
body:has(#show-right:checked) details:not(.right),
body:has(#show-wrong:checked) details:not(.wrong),
body:has(#show-failed:checked) details:not(.failed) { display: none; }
"""


def write_report(record: RunRecord, folder: Path) -> None:
    """Write the page into a run's folder, whole or not at all."""
    page = report(record).encode("utf-8", "replace")  # a server may send half a surrogate
    write_atomically(folder / FILE, page)


def report(record: RunRecord) -> str:
    """The page of a run, as HTML."""
    title = f"{record.task['name']}: {record.name}"
    samples = "\n".join(_sample(sample, record) for sample in record.samples)
    description = f'<p class="soft">{escape(record.task["description"])}</p>'
    parts = (description, _scores(record), _facts(record), _filter(record), samples)
    return page(title, "\n".join(parts))


def page(title: str, body: str, style: str = "") -> str:
    """A page that needs no other file: its heading, and the body below. style: more CSS.

    >>> page("a < b", "").splitlines()[-3]
    '<h1>a &lt; b</h1>'
    """
    return f"""<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{POLICY}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{escape(title)}</title>
<style>{STYLE}{style}</style>
<h1>{escape(title)}</h1>
{body}
</html>
"""


def facts(found: Mapping[str, str]) -> str:
    """Names and texts as a list of two columns.

    >>> facts({"model": "tiny"})
    '<dl><dt>model<dd>tiny</dl>'
    """
    rows = [f"<dt>{escape(name)}<dd>{escape(text)}" for name, text in found.items()]
    return f"<dl>{''.join(rows)}</dl>"


def state(sample: Sample, metric: str) -> str:
    """ "right", "wrong" or "failed"; a score between 0 and 1 is right from 0.5 on.

    >>> state(Sample("a", None, "", {}, scores={"exact": 1.0}), "exact")
    'right'
    """
    if metric not in sample.scores:
        return "failed"
    return "right" if sample.scores[metric] >= 0.5 else "wrong"


def _scores(record: RunRecord) -> str:
    rows = []
    for score in record.scores:
        interval = "" if score.low is None else f"{score.low:z.3f} to {score.high:z.3f}"
        name = escape(score.name)
        if score.name == record.metric:
            name = f"<strong>{name}</strong>"
        cells = f"<td class=n>{score.mean:z.3f}<td>{interval}<td class=n>{score.items}"
        rows.append(f"<tr><th scope=row>{name}{cells}")
    head = "<tr><th>score<th class=n>mean<th>95% interval<th class=n>items"
    return f"<div class=scroll><table>{head}{''.join(rows)}</table></div>"


def _facts(record: RunRecord) -> str:
    clustered = "" if record.groups is None else f" in {record.groups} groups of related items"
    found = {
        "items": f"{len(record.samples)} of {record.task['items']}{clustered}",
        "model": ", ".join(f"{name} {value}" for name, value in record.model.items() if value),
        "task": f"hash {record.task['hash'][:16]}",
        "finished": record.finished,
        "versions": ", ".join(f"{name} {value}" for name, value in record.versions.items()),
    }
    if record.notes:
        found["to know"] = "; ".join(record.notes)
    return facts(found)


def _filter(record: RunRecord) -> str:
    states = [state(sample, record.metric) for sample in record.samples]
    counts = {kind: states.count(kind) for kind in ("right", "wrong", "failed")}
    counts = {"all": len(states)} | counts
    labels = []
    for kind, count in counts.items():
        checked = " checked" if kind == "all" else ""
        button = f"<input type=radio name=show id=show-{kind}{checked}>"
        labels.append(f"<label>{button} {kind} ({count})</label>")
    return f"<fieldset><legend>Show the samples</legend>{''.join(labels)}</fieldset>"


def _sample(sample: Sample, record: RunRecord) -> str:
    kind = state(sample, record.metric)
    group = "" if sample.group is None else f' <span class="soft">{escape(sample.group)}</span>'
    parts = [f'<details class="{kind}"><summary><span class="state">{kind}</span> ']
    parts.append(f"{escape(sample.id)}{group} {escape(_chosen(sample))}</summary>")
    if sample.error is not None:
        parts.append(f"<p>The model failed: {escape(sample.error)}</p>")
    parts.append(f"<pre>\n{_prompt(sample)}</pre>")
    if "options" in sample.answer:
        parts.append(_options(sample))
    elif "text" in sample.answer:
        parts.append(_text(sample))
    else:
        wanted = sample.asked.get("options") or sample.asked.get("references", [])
        parts.append(_list("options" if "options" in sample.asked else "accepted", wanted))
    scores = ", ".join(f"{name} {value:g}" for name, value in sample.scores.items())
    parts.append(f"<p class=soft>{escape(scores)}</p></details>")
    return "".join(parts)


def _chosen(sample: Sample) -> str:
    """The option that was chosen, or the answer that was extracted."""
    if "options" in sample.answer:
        return sample.answer["options"][sample.answer["choice"]]["text"]
    extracted = sample.answer.get("extracted")
    return extracted["answer"] if extracted else ""


def _prompt(sample: Sample) -> str:
    if isinstance(sample.prompt, str):
        return escape(sample.prompt)
    turns = [f"{turn['role']}: {turn['content']}" for turn in sample.prompt]
    return escape("\n\n".join(turns))


def _options(sample: Sample) -> str:
    """A row for each option: which is right, which was chosen, and its log-probabilities."""
    rows = []
    for number, option in enumerate(sample.answer["options"]):
        notes = []
        if number == sample.asked["answer"]:
            notes.append("right")
        if number == sample.answer["choice"]:
            notes.append("chosen")
        if option["merged"] is not None:
            notes.append("merged with the context")
        pairs = zip(option["tokens"], option["log_probs"], strict=True)
        tokens = " ".join(f"{token!r} {log_prob:z.2f}" for token, log_prob in pairs)
        cells = (
            f"<td class=n>{option['log_prob']:z.2f}<td class=n>{math.exp(option['log_prob']):.2%}"
        )
        rows.append(
            f"<tr><td>{escape(option['text'])}<td>{', '.join(notes)}{cells}"
            f"<td class=soft>{escape(tokens)}"
        )
    head = "<tr><th>option<th><th class=n>log p<th class=n>p<th>by token"
    return f"<div class=scroll><table>{head}{''.join(rows)}</table></div>"


def _text(sample: Sample) -> str:
    """What the model wrote, with the extracted part marked, and what is accepted."""
    text = sample.answer["text"]
    found: Mapping[str, Any] | None = sample.answer["extracted"]
    if found is None:
        shown = escape(text)
        note = "no rule found an answer"
    else:
        start = found["start"]
        end = found["end"]
        marked = f"<mark>{escape(text[start:end])}</mark>"
        shown = f"{escape(text[:start])}{marked}{escape(text[end:])}"
        note = f"found by the rule {found['rule']!r}"
    note += f"; the text ended by {sample.answer['finish']}"
    accepted = _list("accepted", sample.asked["references"])
    return f"<pre>\n{shown}</pre><p class=soft>{escape(note)}</p>{accepted}"


def _list(name: str, texts: Iterable[str]) -> str:
    return f"<p>{name}: {escape(' | '.join(texts))}</p>"
