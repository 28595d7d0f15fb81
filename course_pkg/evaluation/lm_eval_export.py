"""A task in the format of lm-evaluation-harness: its items as JSON lines, and a YAML file.

Each line has the whole prompt, with the examples, so that both programs ask the same. Lists stand
in the lines as texts, since the loader of JSON would turn texts that are all dates into times.
"quasi" becomes patterns that are deleted; the result differs only if a tab stands between words.
What a model thinks before </think> is not left out there. Source: lm-eval 0.4.13.
"""

import hashlib
import json
from pathlib import Path
from typing import Any

from course_pkg.common.files import write_atomically
from course_pkg.evaluation.answer_match import normalize
from course_pkg.evaluation.multiple_choice import ChoiceQuestion
from course_pkg.evaluation.run_errors import TaskError
from course_pkg.evaluation.samples import ItemRequest, make_requests
from course_pkg.evaluation.task import CHOICE, Task

SEAL = "# written by course eval --lm-eval; the lines above have the SHA-256 "
METRICS = {"sum": "acc", "character": "acc_norm", "byte": "acc_bytes"}
QUASI = [  # in this order
    r"[!-/:-@\[-`{-~]",  # ASCII punctuation
    r"(?i)\b(?:a|an|the)\b",
    r"\A\s+|\s+\Z",
    r"(?<=\s)\s+",
]


def export_to_lm_eval(task: Task, folder: Path) -> Path:
    """Write `<name>.yaml` and `<name>.lm-eval.jsonl` into a folder; return the path of the first.

    Raises TaskError if lm-eval's format can't say what the task says, or if a file is another's.
    """
    import yaml

    config = _config(task)  # before anything is written
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{task.name}.yaml"
    items = (folder / f"{task.name}.lm-eval.jsonl").absolute()
    _require_own(path, items)
    lines = "".join(json.dumps(_line(task, request)) + "\n" for request in make_requests(task))
    config["dataset_kwargs"] = {"data_files": {"test": str(items)}}
    config["metadata"]["items_sha256"] = _hash(lines.encode())
    text = yaml.safe_dump(config, sort_keys=False, allow_unicode=True)
    write_atomically(items, lines)
    write_atomically(path, f"{text}{SEAL}{_hash(text.encode())}\n")
    return path


def _require_own(path: Path, items: Path) -> None:
    """Raise TaskError for a file that this did not write as it is now."""
    import yaml

    text, seal, written = b"", b"", None
    if path.is_file():
        text, _, seal = path.read_bytes().rpartition(SEAL.encode())
    is_own = seal == f"{_hash(text)}\n".encode()
    if is_own:
        written = yaml.safe_load(text)["metadata"]["items_sha256"]
    for file, is_unchanged in (
        (path, is_own),
        (items, items.is_file() and _hash(items.read_bytes()) == written),
    ):
        if file.exists() and not is_unchanged:
            raise TaskError(
                f"{file} exists, and is not as this command writes it: move it, or give another "
                "folder to --lm-eval"
            )


def _hash(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def _config(task: Task) -> dict[str, Any]:
    """lm-eval's configuration, without the path of the items."""
    if task.chat:
        raise TaskError(
            f"{task.name} asks by chat: set `chat = false`, and give lm-eval --apply_chat_template"
        )
    config = {
        "task": task.name,
        "dataset_path": "json",
        "test_split": "test",
        "doc_to_text": "{{prompt}}",
        "num_fewshot": 0,  # the prompts have their examples
        "metadata": {"version": 1, "course_task": task.hash},
    }
    return config | (_choice(task) if task.kind == CHOICE else _generation(task))


def _choice(task: Task) -> dict[str, Any]:
    if task.normalization not in METRICS:
        raise TaskError(
            f"lm-eval has no score by {task.normalization!r} as {task.name} has it: use one of "
            f"{', '.join(METRICS)}"
        )
    return {
        "output_type": "multiple_choice",
        "doc_to_choice": "{{choices}}",
        "doc_to_target": "{{answer}}",
        "target_delimiter": task.template.delimiter,
        "metric_list": [
            {"metric": metric, "aggregation": "mean", "higher_is_better": True}
            for metric in METRICS.values()
        ],
    }


def _generation(task: Task) -> dict[str, Any]:
    if len(task.rules) != 1 or task.normalization == "number" or task.report != "exact":
        raise TaskError(
            f"lm-eval can't extract and compare as {task.name} does: use one rule, a "
            "normalization other than 'number', and report = \"exact\""
        )
    [rule] = task.rules
    metric: dict[str, Any] = {"metric": "exact_match", "aggregation": "mean"}
    metric["higher_is_better"] = True
    if task.normalization == "quasi":
        metric |= {"regexes_to_ignore": QUASI, "ignore_case": True}
    pattern = {"function": "regex", "regex_pattern": rule.pattern}
    pattern["group_select"] = 0 if rule.which == "first" else -1
    return {
        "output_type": "generate_until",
        "doc_to_target": "{{references}}",
        "generation_kwargs": {
            "until": list(task.stop),
            "max_gen_toks": task.max_new_tokens,
            "do_sample": False,
        },
        "filter_list": [{"name": "rule", "filter": [pattern, {"function": "take_first"}]}],
        "metric_list": [metric],
    }


def _line(task: Task, request: ItemRequest) -> dict[str, Any]:
    question = request.question
    about = {"id": request.item.id, "group": request.item.group}
    if isinstance(question, ChoiceQuestion):
        choices = repr(list(question.options))
        return about | {"prompt": question.context, "choices": choices, "answer": question.answer}
    references = list(question.references)
    if task.normalization == "strip":  # lm-eval strips what it extracts, and no reference
        references = [normalize(text, "strip") for text in references]
    return about | {"prompt": question.prompt, "references": repr(references)}
