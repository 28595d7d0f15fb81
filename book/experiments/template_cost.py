"""What does a wrong chat template cost? SmolLM2 reads the test instructions in four forms.

    python book/experiments/template_cost.py            run what is missing of the record
    python book/experiments/template_cost.py --confirm  after an edit: run one short row again

First the model as it is: its loss on the same answers, and what it writes. Then it is tuned with
one template, and its loss is measured with that one and with another.
"""

from instruction_task import SETTINGS, Task, conversation
from record import main

from course_pkg.finetuning.formats import ALPACA, BARE, chat_prompt, with_template
from course_pkg.finetuning.masking import tokenize_conversation
from course_pkg.lm.tiny import CHAT_TEMPLATE
from course_pkg.studies.instructions.instruction_data import load_instructions

# SmolLM2's own form without the system turn that its template adds is the tiny model's template.
TEMPLATES = {
    "own": None,
    "own, no system": CHAT_TEMPLATE,
    "alpaca": ALPACA,
    "bare": BARE,
}
NOT_WRITTEN = ("own, no system",)  # only the loss is measured, to save time
TUNED = ("own", "alpaca")
STEPS, BATCH, SEED = 30, 4, 1
DATA = ("instructions/train.jsonl", "instructions/test.jsonl")
PROBE = {"tuned": "no", "template": "alpaca", "items": 3}
PLAN = [
    PROBE,
    *({"tuned": "no", "template": name, "items": 60} for name in TEMPLATES),
    *({"tuned": name, "steps": STEPS, "seed": SEED, "items": 30} for name in TUNED),
]


class Templates(Task):
    """The task, and the tokenizer with each template."""

    def __init__(self) -> None:
        super().__init__()
        self.tokenizers = {
            name: with_template(self.tokenizer, template) if template else self.tokenizer
            for name, template in TEMPLATES.items()
        }

    def losses_with(self, template: str, items: list) -> list[list[float]]:
        """As `losses`, for instructions."""
        tokenizer = self.tokenizers[template]
        return self.losses([tokenize_conversation(conversation(i), tokenizer) for i in items])


def measure(task: Templates, key: dict) -> dict:
    """Losses and answers with one template, or the losses of a tuned model with two."""
    items = load_instructions("test")[: key["items"]]
    if key["tuned"] == "no":
        tokenizer = task.tokenizers[key["template"]]
        result = {"losses": task.losses_with(key["template"], items)}
        if key["template"] not in NOT_WRITTEN:
            prompts = [chat_prompt(item.user_turn, tokenizer) for item in items]
            result["answers"] = task.write(prompts)
        return result
    tokenizer = task.tokenizers[key["tuned"]]
    train_items = [conversation(item) for item in load_instructions("train")]
    examples = [tokenize_conversation(item, tokenizer) for item in train_items]
    task.tune(examples, BATCH, key["steps"], key["seed"])
    result = {"losses": {name: task.losses_with(name, items) for name in TUNED}}
    task.restore()
    return result


if __name__ == "__main__":
    settings = {**SETTINGS, "batch": BATCH, "templates": TEMPLATES}
    main(__file__, PLAN, Templates, measure, probe=PROBE, settings=settings, data=DATA)
