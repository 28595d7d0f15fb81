"""What lm-eval finds for questions and prompts: a program for an environment that has lm-eval.

It reads a request, JSON, from stdin and writes the answer to stdout; `test_lm_eval.py` starts it.
A request has the model's folder as `model`, a `dtype`, and:

    questions → options     for each option of each question: its log-probability, and whether it is
                            what the model would write; a list of lists
              → unconditional  the same log-probabilities after an empty context
              → metrics     acc, acc_norm, acc_bytes and acc_mutual_info of lm-eval's own task
    prompts   → texts       greedy texts of at most `new` tokens, up to a string in `until`
    task      → results     of the first `limit` items of the task with a `name` in a `folder`

A question is {"context", "options", "answer"}. lm-eval puts a space between context and option. It
uses no module of the course.
"""

import json
import sys
import tempfile
from pathlib import Path

METRICS = ("acc", "acc_norm", "acc_bytes", "acc_mutual_info")


def multiple_choice(model, questions: list[dict]) -> dict:
    """What lm-eval's task makes of the questions."""
    from lm_eval import simple_evaluate

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "items.jsonl")
        path.write_text("".join(json.dumps(item) + "\n" for item in questions), "utf-8")
        task = {
            "task": "course_items",
            "dataset_path": "json",
            "dataset_kwargs": {"data_files": {"test": str(path)}, "cache_dir": folder},
            "test_split": "test",
            "output_type": "multiple_choice",
            "doc_to_text": "{{context}}",
            "doc_to_choice": "{{options}}",
            "doc_to_target": "{{answer}}",
            "metric_list": [{"metric": name} for name in METRICS],
        }
        result = simple_evaluate(model, tasks=[task], bootstrap_iters=0, log_samples=True)
    samples = sorted(result["samples"]["course_items"], key=lambda sample: sample["doc_id"])
    scored = [[response[0] for response in sample["resps"]] for sample in samples]
    counts = [len(question["options"]) for question in questions]
    means = result["results"]["course_items"]
    return {
        "options": [item[:count] for item, count in zip(scored, counts, strict=True)],
        "unconditional": [
            [log_prob for log_prob, _ in item[count:]]
            for item, count in zip(scored, counts, strict=True)
        ],
        "metrics": {name: means[f"{name},none"] for name in METRICS},
    }


def generate(model, prompts: list[str], until: list[str], new: int) -> list[str]:
    """lm-eval's greedy texts."""
    from lm_eval.api.instance import Instance

    settings = {"until": until, "max_gen_toks": new, "do_sample": False}
    requests = [
        Instance("generate_until", {}, (prompt, settings), number)
        for number, prompt in enumerate(prompts)
    ]
    return model.generate_until(requests, disable_tqdm=True)


def run_task(model, folder: str, name: str, limit: int) -> dict[str, float]:
    """lm-eval's results for a task that `course eval --lm-eval` wrote."""
    from lm_eval import simple_evaluate
    from lm_eval.tasks import TaskManager

    manager = TaskManager(include_path=folder, include_defaults=False)
    options = {"task_manager": manager, "limit": limit, "bootstrap_iters": 0}
    results = simple_evaluate(model, tasks=[name], **options)["results"][name]
    return {key: value for key, value in results.items() if "," in key}


def main() -> None:
    request = json.load(sys.stdin)
    import torch
    from lm_eval.models.huggingface import HFLM

    torch.set_num_threads(1)
    model = HFLM(request["model"], device="cpu", dtype=request["dtype"], batch_size=4)
    answer = {}
    if questions := request.get("questions"):
        answer |= multiple_choice(model, questions)
    if prompts := request.get("prompts"):
        answer["texts"] = generate(model, prompts, request["until"], request["new"])
    if task := request.get("task"):
        answer["results"] = run_task(model, **task)
    print("ANSWER" + json.dumps(answer))


if __name__ == "__main__":
    main()
