"""Tasks in files: a TOML file beside its items, in JSON lines::

    description = "Simple questions with four options."
    items = "questions.jsonl"                 # beside this file; see `items`

    [prompt]                                  # see `prompt_template`
    question = "Question: {question}\\nAnswer:"
    chat = false                              # true: as a chat, by the model's chat template

    [examples]                                # solved ones before the question; may be left out
    items = "examples.jsonl"
    count = 3
    seed = 0

    [multiple-choice]                         # see `multiple_choice`
    options = "text"                          # "letters": listed in the prompt, chosen by letter
    normalization = "character"
    premise = "Answer:"                       # adds the score "pmi", by mutual information

or, in place of the last table, for answers that the model writes::

    [generation]                              # see `answer_extraction` and `answer_match`
    rules = ["first line", {name = "a digit", pattern = "[0-9]"}]
    normalization = "quasi"
    stop = ["\\n"]
    max_new_tokens = 16
    metrics = ["rouge-l"]                     # see `metric_registry`
    report = "exact"                          # the score that counts: exact, quasi, f1, or of these

All prompts are written once before a model is loaded, so that a fault costs no time. An error names
the file and the line; `tomllib` gives values without their lines, so the line is looked for.
"""

import re
import tomllib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

from course_pkg.common.arguments import (
    require_bool,
    require_choice,
    require_integer,
    require_list,
    require_string,
    text_list,
)
from course_pkg.evaluation.answer_extraction import RULES, Rule, known_rules
from course_pkg.evaluation.answer_match import NORMALIZATIONS as TEXT_FORMS
from course_pkg.evaluation.answer_match import exact_match
from course_pkg.evaluation.items import LETTERS, Item, read_items
from course_pkg.evaluation.metric_registry import OF_ANSWERS
from course_pkg.evaluation.multiple_choice import NORMALIZATIONS
from course_pkg.evaluation.option_boundary import check_options
from course_pkg.evaluation.prompt_template import PromptTemplate, choose_examples
from course_pkg.evaluation.run_errors import TaskError
from course_pkg.evaluation.task import ALWAYS, CHOICE, GENERATION, Task

BUILT_IN = Path(str(resources.files("course_pkg") / "data/evaluation"))
OPTIONS = ("text", "letters")
REQUIRED = object()  # the default of a key that must be there


@dataclass(frozen=True)
class TomlFile:
    """A file's text and values; "" is the name of the table at the top."""

    path: Path
    text: str
    values: dict[str, Any]

    def table(self, name: str, keys: Sequence[str]) -> dict[str, Any]:
        """A table; empty if absent. Raises TaskError for a key that is none of these."""
        table = self.values.get(name, {}) if name else self.values
        if not isinstance(table, dict):
            raise self.error("", name, f"{name} must be a table: write [{name}]")
        for key in table:
            if key not in keys:
                known = ", ".join(keys)
                raise self.error(name, key, f"unknown key {key!r}: use some of {known}")
        return table

    def take(
        self, name: str, key: str, check: Callable[[Any, str], Any], default: Any = REQUIRED
    ) -> Any:
        """The value of a key, as `check(value, key)` returns it, or the default; or a TaskError."""
        table = self.values.get(name, {}) if name else self.values
        if key not in table:
            if default is REQUIRED:
                where = f"[{name}]" if name else "the top of the file"
                raise self.error(name, key, f"{where} has no {key!r}: add it")
            return default
        try:
            return check(table[key], key)
        except (TypeError, ValueError) as error:
            raise self.error(name, key, str(error)) from None

    def error(self, name: str, key: str, problem: str) -> TaskError:
        return TaskError(f"{self.path}, line {line_of(self.text, name, key)}: {problem}")


def task_names() -> list[str]:
    """The tasks that come with the course."""
    return sorted(path.stem for path in BUILT_IN.glob("*.toml"))


def load_task(source: str | Path) -> Task:
    """Read a task, by its name in `task_names` or its TOML file. Raises TaskError with a line."""
    built_in = str(source) in task_names()
    path = BUILT_IN / f"{source}.toml" if built_in else Path(source).expanduser()
    if not path.is_file():
        known = ", ".join(task_names())
        raise TaskError(f"there is no task {str(source)!r}: give one of {known}, or a TOML file")
    return _task(read_toml(path))


def _task(file: TomlFile) -> Task:
    file.table("", ("description", "items", "prompt", "examples", CHOICE, GENERATION))
    kinds = [kind for kind in (CHOICE, GENERATION) if kind in file.values]
    if len(kinds) != 1:
        which = "both" if kinds else "none"
        problem = f"expected one of the tables [{CHOICE}] and [{GENERATION}], found {which}"
        raise file.error("", kinds[-1] if kinds else "", f"{problem}: they say how to score")
    [kind] = kinds
    scoring = _choice(file) if kind == CHOICE else _generation(file)
    template, chat = _prompt(file)
    description = file.take("", "description", require_string, "")
    items = _items(file, "", kind)
    examples, seed = _examples(file, kind)
    name = file.path.stem
    task = Task(name, description, kind, items, template, chat, examples, seed, **scoring)
    _check_prompts(file, task)
    return task


def _choice(file: TomlFile) -> dict[str, Any]:
    file.table(CHOICE, ("options", "normalization", "premise"))
    settings = {
        "options": file.take(CHOICE, "options", _one_of(OPTIONS), "text"),
        "normalization": file.take(CHOICE, "normalization", _one_of(NORMALIZATIONS), "sum"),
        "premise": file.take(CHOICE, "premise", require_string, None),
    }
    if settings["normalization"] == "pmi" and settings["premise"] is None:
        problem = 'normalization "pmi" needs a premise: add one, such as premise = "Answer:"'
        raise file.error(CHOICE, "normalization", problem)
    return settings


def _generation(file: TomlFile) -> dict[str, Any]:
    file.table(
        GENERATION, ("rules", "normalization", "stop", "max_new_tokens", "metrics", "report")
    )

    def rules(value: Any, key: str) -> tuple[Rule, ...]:
        require_list(value, key, "put the rules into [ ]")
        return tuple(known_rules([_rule(rule) for rule in value]))

    def stop(value: Any, key: str) -> tuple[str, ...]:
        texts = tuple(text_list(value, "stop string")) if value != [] else ()
        if "" in texts:
            raise ValueError("a stop string is empty: every text contains it")
        return texts

    def metrics(value: Any, key: str) -> tuple[str, ...]:
        require_list(value, key, "put the names into [ ]")
        return tuple(require_choice(name, "a metric", OF_ANSWERS) for name in value)

    more = file.take(GENERATION, "metrics", metrics, ())
    return {
        "metrics": more,
        "report": file.take(GENERATION, "report", _one_of((*ALWAYS, *more)), "exact"),
        "rules": file.take(GENERATION, "rules", rules, (RULES["whole text"],)),
        "normalization": file.take(GENERATION, "normalization", _one_of(TEXT_FORMS), "strip"),
        "stop": file.take(GENERATION, "stop", stop, ()),
        "max_new_tokens": file.take(GENERATION, "max_new_tokens", require_integer, 64),
    }


def _one_of(choices: Sequence[str]) -> Callable[[Any, str], str]:
    return lambda value, key: require_choice(value, key, choices)


def _rule(value: Any) -> str | Rule:
    if not isinstance(value, dict):
        return value
    if not {"name", "pattern"} <= value.keys() <= {"name", "pattern", "which"}:
        raise ValueError(
            f"a rule of your own has name, pattern and perhaps which, got {', '.join(value)}"
        )
    for key, text in value.items():
        require_string(text, f"a rule's {key}")
    return Rule(**value)


def _prompt(file: TomlFile) -> tuple[PromptTemplate, bool]:
    names = tuple(PromptTemplate.__dataclass_fields__)
    table = file.table("prompt", (*names, "chat"))
    chat = file.take("prompt", "chat", require_bool, False)
    texts = {name: file.take("prompt", name, require_string) for name in names if name in table}
    try:
        template = PromptTemplate(**texts)
    except ValueError as error:
        raise file.error("prompt", "question", str(error)) from None
    return template, chat


def _items(file: TomlFile, table: str, kind: str) -> tuple[Item, ...]:
    path = file.path.parent / file.take(table, "items", require_string)
    if not path.is_file():
        raise file.error(table, "items", f"there is no file {path}: correct the name")
    return read_items(path, kind == CHOICE)


def _examples(file: TomlFile, kind: str) -> tuple[tuple[Item, ...], int]:
    table = file.table("examples", ("items", "count", "seed"))
    if not table:
        return (), 0
    pool = _items(file, "examples", kind)
    seed = file.take("examples", "seed", lambda value, key: require_integer(value, key, 0), 0)

    def count(value: Any, key: str) -> int:
        require_integer(value, key, 0)
        if value > len(pool):
            raise ValueError(f"{value} examples are wanted, but the file has {len(pool)}")
        return value

    wanted = file.take("examples", "count", count, len(pool))
    drawn = choose_examples([{"id": item.id} for item in pool], wanted, seed)
    by_id = {item.id: item for item in pool}
    return tuple(by_id[example["id"]] for example in drawn), seed


def _check_prompts(file: TomlFile, task: Task) -> None:
    """Raise TaskError for the first item that can't be asked or scored."""
    path = file.path.parent / file.values["items"]
    for items, where in ((task.examples, "an example"), (task.items, "an item")):
        for item in items:
            try:
                _check_item(task, item, as_example=where == "an example")
            except ValueError as error:
                place = f"{path}, line {item.line}" if where == "an item" else f"{file.path}"
                raise TaskError(f"{place}: {where}, {item.id!r}: {error}") from None


def _check_item(task: Task, item: Item, as_example: bool) -> None:
    if task.options == "letters" and len(item.options) > len(LETTERS):
        raise ValueError(f"it has {len(item.options)} options: give at most {len(LETTERS)}")
    examples = () if as_example else [task.fields(example) for example in task.examples]
    prompt = task.template.render(task.fields(item), examples)
    if task.kind == CHOICE and task.options == "text" and not task.chat:
        check_options(prompt.text, item.options, prompt.delimiter)
    if task.kind == GENERATION:
        exact_match("", item.answers, task.normalization)
        if task.report in ("quasi", "f1"):
            exact_match("", item.answers, "quasi")


def read_toml(path: Path) -> TomlFile:
    """Read a file. Raises TaskError, with the line, if it isn't TOML in UTF-8."""
    try:
        text = path.read_text("utf-8")
        return TomlFile(path, text, tomllib.loads(text))
    except FileNotFoundError:
        raise TaskError(f"{path} does not exist: correct its path") from None
    except UnicodeDecodeError as error:
        raise TaskError(f"{path} is not UTF-8 ({error}): save it as UTF-8") from None
    except RecursionError:
        raise TaskError(
            f"{path} is nested too deeply: a task has tables of texts and lists"
        ) from None
    except tomllib.TOMLDecodeError as error:
        hint = 'write texts as "…", and a line break in them as \\n'
        raise TaskError(f"{path} is not TOML: {error}: {hint}") from None


def line_of(text: str, table: str, key: str) -> int:
    """The line of a key in a table of a TOML text, or else of the table; 1 if neither is there."""
    place = 1
    inside = table == ""
    for number, line in enumerate(text.splitlines(), start=1):
        if header := re.match(r'\s*\[+\s*"?([\w-]+)', line):
            inside = header[1] == table
            if inside or (not table and header[1] == key):
                place = number
        elif inside and re.match(rf'\s*"?{re.escape(key)}"?\s*=', line):
            return number
    return place
