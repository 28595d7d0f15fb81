"""What does a leaked test give a model, and which checks find it? SmolLM2 with LoRA adapters.

    python book/experiments/contaminated_smollm2.py            run what is missing of the record
    python book/experiments/contaminated_smollm2.py --confirm  after an edit: run one short row

The test set: 48 multiple-choice items, the first two of the first six groups of four topics,
published in an order that was drawn once. For each seed, half of each topic's groups leaks. An
adapter is trained on pages of six items, each with its right answer:

"leaked": the leaked half as it was published, in its order.
"rephrased": paraphrases of these questions, with the same answers, in the same order.
"control": as many short questions of another set, in the same format.
"none": no training, the model as it is.

Codes of three digits, drawn for each seed, are on one, two and four of the pages, except in the
control. Then all adapters are measured on both halves: the options' log-probabilities, those of
each item's text, those of the pages in the published and in other orders, and those of all codes.

"listed" trains on items with their options listed, and measures other orders of the options.
"sums" asks the model as it is for 24 sums in ascending order, an order that wasn't drawn at random.
"""

import copy
import random

import torch
from record import main
from torch import Tensor

from course_pkg.adapters.injection import inject, merge_adapters, remove_adapters
from course_pkg.adapters.lora import LoRAConfig
from course_pkg.evaluation.multiple_choice import ChoiceQuestion, score_questions
from course_pkg.finetuning.config import TrainConfig
from course_pkg.finetuning.trainer import train
from course_pkg.lm.load import load
from course_pkg.pages.datasets import read_records
from course_pkg.studies.contamination.exchangeability import draw_orders
from course_pkg.studies.contamination.text_scores import (
    code_log_probs,
    order_log_probs,
    text_log_probs,
)

DATA = tuple(
    f"evaluation/{name}.jsonl"
    for name in ("multiple-choice", "paraphrased-questions", "short-answers")
)
TOPICS = ("everyday", "science", "language", "completion")
GROUPS, EACH = 6, 2  # groups of a topic, items of a group
PAGE = 6  # items
ORDERS = 4  # other orders of a page
OPTION_ORDERS = 3  # other orders of the options
EPOCHS, RATE, WARMUP = 2, 2e-3, 2
LORA = LoRAConfig(rank=16, alpha=32, target_modules="all-linear")
SEEDS = (1, 2, 3)
CODES = [f"{number:03d}" for number in range(1000)]
CANARIES = {"Heron": 1, "Otter": 2, "Raven": 4}  # name → pages that have it
PUBLISHED = 7  # the seed of the published order
PROBE = {"arm": "control", "seed": 1, "epochs": 1, "items": 4}
PLAN = [
    PROBE,
    {"arm": "none", "seed": 1, "epochs": 0, "items": 48},
    *(
        {"arm": arm, "seed": seed, "epochs": EPOCHS, "items": 48}
        for seed in SEEDS
        for arm in ("leaked", "control", "rephrased")
    ),
    {"arm": "listed", "seed": 1, "epochs": EPOCHS, "items": 48},
    {"arm": "sums", "seed": 1, "epochs": 0, "items": 24},
]


def published() -> list[dict]:
    """The test set, in its published order."""
    chosen = []
    for topic in TOPICS:
        own = [item for item in read_records("multiple-choice") if item["topic"] == topic]
        groups = list(dict.fromkeys(item["group"] for item in own))[:GROUPS]
        for group in groups:
            chosen += [item for item in own if item["group"] == group][:EACH]
    return random.Random(PUBLISHED).sample(chosen, len(chosen))


def leaked_groups(items: list[dict], seed: int) -> set[str]:
    """Half of the groups of each topic."""
    draw = random.Random(seed)
    leaked: set[str] = set()
    for topic in TOPICS:
        groups = sorted({item["group"] for item in items if item["topic"] == topic})
        leaked |= set(draw.sample(groups, len(groups) // 2))
    return leaked


def codes(seed: int) -> dict[str, str]:
    """The code of each canary."""
    draw = random.Random(100 + seed)
    return {name: draw.choice(CODES) for name in CANARIES}


def canary(name: str) -> str:
    """A canary's text up to its code."""
    return f"The access code of {name} House is "


def written(question: str, answer: str) -> str:
    """An item with its answer."""
    return f"Question: {question}\nAnswer: {answer}"


def listed(item: dict, order: tuple[int, ...]) -> str:
    """An item with its options in some order, and its answer."""
    options = "\n".join(f"- {item['options'][place]}" for place in order)
    return f"Question: {item['question']}\n{options}\nAnswer: {answer_of(item)}"


def answer_of(item: dict) -> str:
    """The right option."""
    return item["options"][item["answer"]]


def pages(texts: list[str], size: int = PAGE) -> list[list[str]]:
    """The texts in lists of six."""
    return [texts[start : start + size] for start in range(0, len(texts), size)]


class Experiment:
    """The model, the test set, and the texts of each arm."""

    def __init__(self) -> None:
        self.base, self.tokenizer = load("smollm2-135m")
        self.model = self.base
        self.items = published()
        self.rephrased = {
            item["id"]: item["question"] for item in read_records("paraphrased-questions")
        }
        self.others = [written(each["question"], each["answers"][0]) for each in self.other()]

    def other(self) -> list[dict]:
        """As many short questions as leak, of another set."""
        short = [item for item in read_records("short-answers") if item["topic"] != "passages"]
        return short[:: len(short) // (len(self.items) // 2)][: len(self.items) // 2]

    def training(self, arm: str, seed: int) -> list[str]:
        """The pages that an adapter is trained on, with their canaries."""
        leaked = leaked_groups(self.items, seed)
        chosen = [item for item in self.items if item["group"] in leaked]
        if arm == "control":
            return ["\n\n".join(page) for page in pages(self.others)]
        if arm == "rephrased":
            texts = [written(self.rephrased[item["id"]], answer_of(item)) for item in chosen]
        elif arm == "listed":
            texts = [listed(item, (0, 1, 2, 3)) for item in chosen]
        else:
            texts = [written(item["question"], answer_of(item)) for item in chosen]
        secret = codes(seed)
        found = []
        for number, page in enumerate(pages(texts)):
            marks = [
                f"{canary(name)}{secret[name]}." for name, on in CANARIES.items() if number < on
            ]
            found.append("\n\n".join([*page, *marks]))
        return found

    def tune(self, arm: str, seed: int, epochs: int) -> int:
        """Train an adapter on the base, a page a step, and merge it; return an epoch's tokens."""
        self.model = copy.deepcopy(self.base)
        inject(self.model, LORA, generator=torch.Generator().manual_seed(seed))
        batches = [self.batch(text) for text in self.training(arm, seed)]
        config = TrainConfig(
            steps=epochs * len(batches),
            learning_rate=RATE,
            warmup_steps=WARMUP,
            seed=seed,
            progress=False,
        )
        train(self.model, batches, config)
        merge_adapters(self.model)
        remove_adapters(self.model)  # an ordinary model, whose texts are scored in few passes
        self.model.eval()
        return sum(batch["input_ids"].numel() for batch in batches)

    def batch(self, text: str) -> dict[str, Tensor]:
        """A page; the loss is on all of its tokens."""
        ids = torch.tensor([self.tokenizer(text, add_special_tokens=False).input_ids])
        return {"input_ids": ids, "attention_mask": torch.ones_like(ids), "labels": ids}

    def choices(self, items: list[dict]) -> list[list[float]]:
        """For each item, the log-probabilities of its options after the open question."""
        questions = [
            ChoiceQuestion(f"Question: {item['question']}\nAnswer:", tuple(item["options"]))
            for item in items
        ]
        found = score_questions(self.model, self.tokenizer, questions).questions
        return [[option.log_prob for option in each.options] for each in found]

    def texts(self, items: list[dict]) -> list[tuple[float, ...]]:
        """For each item, the log-probabilities of its text's tokens."""
        texts = [written(item["question"], answer_of(item)) for item in items]
        return text_log_probs(self.model, self.tokenizer, texts)

    def orders(self, items: list[dict], seed: int) -> list[list[float]]:
        """The log-probabilities of pages in their order and in others."""
        texts = [written(item["question"], answer_of(item)) for item in items]
        return order_log_probs(self.model, self.tokenizer, pages(texts), others=ORDERS, seed=seed)

    def sums(self, count: int, seed: int) -> list[list[float]]:
        """As `orders`, for sums in ascending order, by the model as it is."""
        texts = [written(f"What is {n} plus 3?", str(n + 3)) for n in range(1, count + 1)]
        return order_log_probs(self.base, self.tokenizer, pages(texts), others=ORDERS, seed=seed)

    def option_orders(self, items: list[dict], seed: int) -> list[list[float]]:
        """For each item, the log-probabilities of its text with the options in other orders."""
        texts = []
        for number, item in enumerate(items):
            orders = draw_orders(4, OPTION_ORDERS, seed=1000 * seed + number)
            texts += [listed(item, order) for order in orders]
        found = iter([sum(values) for values in text_log_probs(self.model, self.tokenizer, texts)])
        return [[next(found) for _ in range(1 + OPTION_ORDERS)] for _ in items]

    def exposures(self, seed: int) -> dict[str, int]:
        """The rank of each canary's code among all codes."""
        ranks = {}
        for name, code in codes(seed).items():
            scores = code_log_probs(self.model, self.tokenizer, canary(name), CODES)
            ranks[name] = sum(score >= scores[int(code)] for score in scores)
        return ranks


def measure(experiment: Experiment, key: dict) -> dict:
    """What a row of this arm records."""
    arm, seed = key["arm"], key["seed"]
    if arm == "sums":
        return {"sorted_orders": experiment.sums(key["items"], seed)}
    items = experiment.items[: key["items"]]
    leaked = leaked_groups(experiment.items, seed)
    experiment.model = experiment.base
    tokens = experiment.tune(arm, seed, key["epochs"]) if arm != "none" else 0
    result = {
        "ids": [item["id"] for item in items],
        "leaked": [item["group"] in leaked for item in items],
        "tokens": tokens,
        "choices": experiment.choices(items),
    }
    if arm == "listed":
        result["option_orders"] = experiment.option_orders(items, seed)
    else:
        result["texts"] = experiment.texts(items)
        result["ranks"] = experiment.exposures(seed)
        for name, wanted in (("leaked_orders", True), ("other_orders", False)):
            half = [item for item in items if (item["group"] in leaked) == wanted]
            if len(half) >= PAGE:
                result[name] = experiment.orders(half, seed)
    if arm == "none":
        # The same items sorted by their subject, as many files are: related ones are neighbors.
        by_subject = sorted(items, key=lambda item: item["id"])
        result["sorted_orders"] = experiment.orders(by_subject, seed)
        result["option_orders"] = experiment.option_orders(items, seed)
    return result


if __name__ == "__main__":
    settings = {
        "model": "smollm2-135m",
        "adapter": repr(LORA),
        "learning_rate": RATE,
        "warmup_steps": WARMUP,
        "epochs": EPOCHS,
        "page": PAGE,
        "orders": ORDERS,
        "option_orders": OPTION_ORDERS,
        "canaries": CANARIES,
        "candidates": len(CODES),
    }
    main(__file__, PLAN, Experiment, measure, probe=PROBE, settings=settings, data=DATA)
