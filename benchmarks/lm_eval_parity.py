"""What lm-evaluation-harness scores and writes, beside the course, for the same random model.

It needs the package lm-eval, in an environment of its own that also sees the course's packages:

    python -m venv .venv-lm-eval
    echo "$PWD"/.venv/lib/python3.*/site-packages > .venv-lm-eval/lib/python3.*/site-packages/c.pth
    .venv-lm-eval/bin/python -m pip install --no-deps lm-eval==0.4.13
    PYTHONPATH=. .venv-lm-eval/bin/python benchmarks/lm_eval_parity.py

prints the largest difference in nats, and fails if a score, a text or a chosen option differs: of
written questions, and of 12 items of each task that `course eval --lm-eval` exports. On 2026-11-26,
in fp64, log-probabilities differed by at most 1.7e-6 nats, and nothing else did.
"""

import json
import math
import os
import tempfile
from dataclasses import replace
from pathlib import Path

import torch

from course_pkg.evaluation.answer_match import normalize
from course_pkg.evaluation.greedy import generate_greedy
from course_pkg.evaluation.lm_eval_export import export_to_lm_eval
from course_pkg.evaluation.local_model import LocalModel
from course_pkg.evaluation.multiple_choice import ChoiceQuestion, score_questions
from course_pkg.evaluation.task_file import load_task
from course_pkg.evaluation.task_run import run_task
from course_pkg.lm.tiny import tiny_model, tiny_tokenizer

TOLERANCE = 1e-5  # nats
ITEMS = 12
NAMES = {"acc": "sum", "acc_norm": "character", "acc_bytes": "byte", "acc_mutual_info": "pmi"}
SOLVED = "Question: What is frozen water?\nAnswer: ice\n\nQuestion: 2 + 3?\nAnswer: 5\n\n"
QUESTIONS = [  # with one right answer, of several lengths and scripts
    ("What do bees make?", ("honey", "milk", "steel", "a very long song about the sea"), 0),
    ("How many legs has a spider?", ("six", "eight", "one hundred and twelve"), 1),
    ("Where is the Eiffel Tower?", ("Rome", "Paris, the capital of France", "Oslo"), 1),
    ("Which drink is made from beans?", ("café", "thé", "eau", "naïve beer"), 0),
    ("What is the capital of China?", ("北京", "東京", "서울", "Ulaanbaatar"), 0),
    ("What is 7 times 8?", ("54", "56", "78", "5600"), 1),
    ("Is the sun a star?", ("yes", "no"), 0),
]


def require(is_so: bool, problem: str) -> None:
    """Raise AssertionError unless something is so."""
    if not is_so:
        raise AssertionError(problem)


def sharpened() -> torch.nn.Module:
    """A tiny model in fp64 whose choices depend on the whole prompt, and are no near-ties."""
    model = tiny_model()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(6 if parameter.dim() == 2 else 1)
    return model.double()


def compare_questions(model: torch.nn.Module, harness, folder: Path) -> float:
    """The largest difference of a log-probability, with and without a context."""
    from lm_eval import simple_evaluate

    rows = [
        {"context": f"{SOLVED}Question: {question}\nAnswer:", "options": options, "answer": answer}
        for question, options, answer in QUESTIONS
    ]
    path = folder / "items.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")
    task = {
        "task": "course_items",
        "dataset_path": "json",
        "dataset_kwargs": {"data_files": {"test": str(path)}, "cache_dir": str(folder)},
        "test_split": "test",
        "output_type": "multiple_choice",
        "doc_to_text": "{{context}}",
        "doc_to_choice": "{{options}}",
        "doc_to_target": "{{answer}}",
        "metric_list": [{"metric": name} for name in NAMES],
    }
    theirs = simple_evaluate(harness, tasks=[task], bootstrap_iters=0, log_samples=True)
    samples = sorted(theirs["samples"]["course_items"], key=lambda sample: sample["doc_id"])
    asked = [ChoiceQuestion(row["context"], row["options"], row["answer"]) for row in rows]
    ours = score_questions(model, tiny_tokenizer(), asked, premise="")
    largest = 0.0
    for scored, sample in zip(ours.questions, samples, strict=True):
        answers = [response[0] for response in sample["resps"]]  # the last ones have no context
        for number, option in enumerate(scored.options):
            log_prob, is_greedy = answers[number]
            alone, _ = answers[len(scored.options) + number]
            largest = max(largest, abs(option.log_prob - log_prob))
            largest = max(largest, abs(option.unconditional - alone))
            require(option.greedy == is_greedy, "the model would write another option")
    means = theirs["results"]["course_items"]
    for name, normalization in NAMES.items():
        require(means[f"{name},none"] == ours.accuracy(normalization), f"{name} differs")
    return largest


def compare_texts(model: torch.nn.Module, harness) -> None:
    """Greedy texts, some of which stop in the middle."""
    from lm_eval.api.instance import Instance

    prompts = [f"{SOLVED}Question: {question}\nAnswer:" for question, *_ in QUESTIONS]
    free = generate_greedy(model, tiny_tokenizer(), prompts, max_new_tokens=24)
    until = [free[0].text[5:7], free[1].text[9]]
    ours = generate_greedy(model, tiny_tokenizer(), prompts, max_new_tokens=24, stop=until)
    settings = {"until": until, "max_gen_toks": 24, "do_sample": False}
    requests = [
        Instance("generate_until", {}, (prompt, settings), number)
        for number, prompt in enumerate(prompts)
    ]
    texts = harness.generate_until(requests, disable_tqdm=True)
    require([text.text for text in ours] == texts, "a text differs")
    require("stop" in {text.finish for text in ours}, "no text stops")


def compare_task(model: LocalModel, harness, name: str, folder: Path) -> None:
    """The scores of an exported task; some of its short answers are made right."""
    from lm_eval import simple_evaluate
    from lm_eval.tasks import TaskManager

    task = load_task(name)
    task = replace(task, items=task.items[:ITEMS])
    if name == "short-answers":
        task = replace(task, max_new_tokens=8)
        written = run_task(task, model, folder / "first").record.samples
        items = list(task.items)
        for number in range(0, ITEMS, 2):  # accept what the model writes
            extracted = written[number].answer["extracted"]
            if extracted and normalize(extracted["answer"], "quasi"):
                answers = (*items[number].answers, f"The {extracted['answer']}!")
                items[number] = replace(items[number], answers=answers)
        task = replace(task, items=tuple(items))
    export_to_lm_eval(task, folder / "tasks")
    record = run_task(task, model, folder / "run").record
    ours = {score.name: score.mean for score in record.scores}
    manager = TaskManager(include_path=str(folder / "tasks"), include_defaults=False)
    options = {"task_manager": manager, "limit": ITEMS, "bootstrap_iters": 0}
    theirs = simple_evaluate(harness, tasks=[name], **options)["results"][name]
    names = NAMES | {"exact_match": "exact"}
    means = {key.partition(",")[0]: mean for key, mean in theirs.items()}
    compared = {names[metric]: mean for metric, mean in means.items() if metric in names}
    require(len(compared) == (1 if name == "short-answers" else 3), f"{name}: other scores")
    for metric, mean in compared.items():
        require(math.isclose(mean, ours[metric]), f"{name}: {metric} differs")
    require(0 < record.score.mean < 1, f"{name}: all answers are right, or none is")


def main() -> None:
    """Compare, and print the largest difference."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        os.environ |= {"HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1", "HF_HOME": name}
        from lm_eval.models.huggingface import HFLM

        torch.set_num_threads(1)
        model = sharpened()
        model.save_pretrained(folder / "model")
        tiny_tokenizer().save_pretrained(folder / "model")
        harness = HFLM(str(folder / "model"), device="cpu", dtype="float64", batch_size=4)
        print(f"log-probabilities: {compare_questions(model, harness, folder):.1e} nats")
        compare_texts(model, harness)
        local = LocalModel(model.eval(), tiny_tokenizer(), "tiny", None)
        for task in ("multiple-choice", "multiple-choice-letters", "short-answers"):
            compare_task(local, harness, task, folder / task)
        print("texts, choices and scores of tasks: the same")


if __name__ == "__main__":
    main()
