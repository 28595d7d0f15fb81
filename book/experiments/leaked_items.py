"""What does a leaked test item gain? Two runs, each with one half of the test items in training.

    python book/experiments/leaked_items.py            run what is missing of the record
    python book/experiments/leaked_items.py --confirm  after an edit: run one short row again

Each test item is in the training set of one run and not in that of the other, so that the two runs
give a pair of measurements for it. The other training items are the same in both.
"""

from instruction_task import SETTINGS, Task, conversation
from record import main

from course_pkg.finetuning.formats import chat_prompt
from course_pkg.finetuning.masking import tokenize_conversation
from course_pkg.studies.instructions.instruction_data import Instruction, load_instructions

LONGEST = 110  # tokens of an item, to save time
TEST_ITEMS, TRAIN_ITEMS = 16, 24
EPOCHS, BATCH, SEED = 3, 4, 1
STEPS = EPOCHS * (TRAIN_ITEMS + TEST_ITEMS // 2) // BATCH
DATA = ("instructions/train.jsonl", "instructions/test.jsonl")
PROBE = {"leaked": "first", "steps": 2, "seed": SEED, "items": 2}
PLAN = [
    PROBE,
    *(
        {"leaked": half, "steps": STEPS, "seed": SEED, "items": TEST_ITEMS}
        for half in ("first", "second")
    ),
]


class Leaks(Task):
    """The task, with short English items of both splits."""

    def __init__(self) -> None:
        super().__init__()
        self.test = self.short("test", TEST_ITEMS)
        self.train = self.short("train", TRAIN_ITEMS)

    def short(self, split: str, count: int) -> list[Instruction]:
        """Short English items, spread over the file."""
        items = [
            item
            for item in load_instructions(split)
            if item.language == "en" and len(self.tokenized([item])[0].input_ids) <= LONGEST
        ]
        return items[:: len(items) // count][:count]

    def tokenized(self, items: list[Instruction]) -> list:
        """The items as tokens and labels."""
        return [tokenize_conversation(conversation(item), self.tokenizer) for item in items]


def measure(task: Leaks, key: dict) -> dict:
    """One run: the losses on all test items, the leaked ones included, and the answers."""
    items = task.test[: key["items"]]
    leaked = task.test[(key["leaked"] == "second") :: 2]
    task.tune(task.tokenized(task.train + leaked), BATCH, key["steps"], key["seed"])
    losses = task.losses(task.tokenized(items))
    answers = task.write([chat_prompt(item.user_turn, task.tokenizer) for item in items])
    task.restore()
    ids = {"ids": [item.id for item in items], "leaked_ids": [item.id for item in leaked]}
    return {**ids, "losses": losses, "answers": answers}


if __name__ == "__main__":
    settings = {**SETTINGS, "batch": BATCH, "epochs": EPOCHS, "train_items": TRAIN_ITEMS}
    main(__file__, PLAN, Leaks, measure, probe=PROBE, settings=settings, data=DATA)
