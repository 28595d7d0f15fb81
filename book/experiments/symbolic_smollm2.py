"""Direct answers against chains of thought, in and out of the domain: SmolLM2, and small models.

    python book/experiments/symbolic_smollm2.py            run what is missing of the record
    python book/experiments/symbolic_smollm2.py --confirm  after an edit: run one short row again

"prompted" rows ask SmolLM2-135M-Instruct: without an example, with examples of two steps that
answer at once, and with the same examples reasoned. "trained" rows train a model of about 0.1
million parameters from random weights on coin flips, either on direct answers or on chains, with
items of the given lengths; it reads words, not letters. The seed of a training decides its items,
their order, the weights, and the tested items.
"""

import re

import torch
from record import main
from tokenizers import Regex, Tokenizer, pre_tokenizers
from tokenizers.models import WordLevel
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from course_pkg.evaluation.greedy import generate_greedy
from course_pkg.finetuning.batches import batches
from course_pkg.finetuning.config import TrainConfig
from course_pkg.finetuning.masking import IGNORE_INDEX, TokenizedExample
from course_pkg.finetuning.trainer import train
from course_pkg.lm.load import load
from course_pkg.studies.domains.reasoning_items import (
    PEOPLE,
    ReasoningItem,
    coin_flip_items,
    first_fault,
    last_letter_items,
    reasoning_prompt,
    score_reasoning,
)

LENGTHS = (2, 3, 4)  # steps of the items for SmolLM2
TESTED = (2, 3, 4, 5)  # for the small models
TASKS = {"last letters": last_letter_items, "coin flips": coin_flip_items}
PROMPTS = {"no example": (0, "direct"), "direct": (8, "direct"), "reasoned": (8, "reasoned")}
PROMPTED_ITEMS, TESTED_ITEMS = 40, 100
SEEDS = range(5)
SHOWN, ASKED = 1, 2  # seeds of the examples and of the test items
NAMES = PEOPLE[:40]
SIZE = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2}
STEPS, BATCH, RATE, ITEMS = 320, 32, 3e-3, 3000
EOS = "<eos>"
PROBE = {"kind": "trained", "style": "reasoned", "lengths": "1 2", "steps": 20, "seed": 0}
PLAN = [
    PROBE,
    *(
        {"kind": "prompted", "task": task, "prompt": prompt, "length": length}
        for task in TASKS
        for prompt in PROMPTS
        for length in LENGTHS
    ),
    *(
        {"kind": "trained", "style": style, "lengths": lengths, "steps": STEPS, "seed": seed}
        for lengths in ("1 2", "1 2 3")
        for style in ("direct", "reasoned")
        for seed in SEEDS
    ),
]


class Models:
    """SmolLM2, loaded when it is first asked."""

    loaded = None

    def smollm2(self):
        self.loaded = self.loaded or load("smollm2-135m")
        return self.loaded


def prompted(models: Models, key: dict) -> dict:
    """What SmolLM2 writes for the items of a task and a length."""
    model, tokenizer = models.smollm2()
    make = TASKS[key["task"]]
    count, style = PROMPTS[key["prompt"]]
    shown = make(max(count, 1), 2, SHOWN)
    items = make(PROMPTED_ITEMS, key["length"], ASKED, avoid=shown)
    written = generate_greedy(
        model,
        tokenizer,
        [reasoning_prompt(item, shown[:count], style) for item in items],
        max_new_tokens=12 * key["length"] + 12 if style == "reasoned" else 16,
        stop=["\n"],
        batch_size=PROMPTED_ITEMS,
    )
    return results(items, [each.text for each in written])


def trained(models: Models, key: dict) -> dict:
    """Train a small model, and test it on each length."""
    seed = key["seed"]
    lengths = [int(length) for length in key["lengths"].split()]
    items = [
        item
        for length in lengths
        for item in coin_flip_items(share(length, lengths), length, seed, names=NAMES)
    ]
    tokenizer = word_tokenizer(items)
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        config = LlamaConfig(
            **SIZE,
            vocab_size=len(tokenizer),
            num_attention_heads=4,
            num_key_value_heads=4,
            max_position_embeddings=256,
            initializer_range=SIZE["hidden_size"] ** -0.5,  # 0.02 is for wider models
            tie_word_embeddings=True,
            bos_token_id=None,
            eos_token_id=tokenizer.eos_token_id,
        )
        model = LlamaForCausalLM(config)
    examples = [tokenized(item, key["style"], tokenizer) for item in items]
    data = []
    while len(data) < key["steps"]:
        data += batches(examples, BATCH, tokenizer.eos_token_id, seed=100 * seed + len(data))
    settings = TrainConfig(
        steps=key["steps"],
        learning_rate=RATE,
        warmup_steps=key["steps"] // 20,
        schedule="cosine",
        shuffle=False,  # `batches` has shuffled
        seed=seed,
        progress=False,
    )
    history = train(model, data[: key["steps"]], settings)
    found = {
        "parameters": sum(parameter.numel() for parameter in model.parameters()),
        "losses": history.losses[:: key["steps"] // 20],
    }
    for length in TESTED:
        tested = coin_flip_items(TESTED_ITEMS, length, 1000 + seed, avoid=items, names=NAMES)
        written = generate_greedy(
            model.eval(),
            tokenizer,
            [item.question for item in tested],
            max_new_tokens=4 * length + 12,
            batch_size=TESTED_ITEMS,
        )
        texts = [re.sub(r" (?=[.:])", "", each.text) for each in written]
        found[str(length)] = results(tested, texts)
    return found


def share(length: int, lengths: list[int]) -> int:
    """How many items of a length are in the training set; there are only 80 of one person."""
    return 2 * len(NAMES) if length == 1 else ITEMS // len(lengths)


def word_tokenizer(items: list[ReasoningItem]) -> PreTrainedTokenizerFast:
    """A tokenizer whose tokens are the words and signs of these items."""
    pieces = {piece for item in items for piece in re.findall(r"\w+|[^\w\s]", item.question)}
    pieces |= {*NAMES, *["heads", "tails", "yes", "no", "The", "answer", "is", ":", "."]}
    vocabulary = {piece: number for number, piece in enumerate([EOS, *sorted(pieces)])}
    tokenizer = Tokenizer(WordLevel(vocabulary, unk_token=EOS))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(r"\w+|[^\w\s]"), "removed", invert=True)
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token=EOS)


def tokenized(
    item: ReasoningItem, style: str, tokenizer: PreTrainedTokenizerFast
) -> TokenizedExample:
    """A question and its answer, with labels on the answer and the end token."""
    question = tokenizer(item.question).input_ids
    answer = [*tokenizer(getattr(item, style)).input_ids, tokenizer.eos_token_id]
    labels = [IGNORE_INDEX] * len(question) + answer
    return TokenizedExample((*question, *answer), tuple(labels))


def results(items: list[ReasoningItem], texts: list[str]) -> dict:
    """For each item its score, and the first fault of its chain; a few texts to look at."""
    faults = [first_fault(item, text) for item, text in zip(items, texts, strict=True)]
    return {
        "scores": score_reasoning(items, texts),
        "faults": [fault.name for fault in faults],
        "steps": [fault.step for fault in faults],
        "texts": texts[:4],
    }


def measure(models: Models, key: dict) -> dict:
    """What a row of this kind records."""
    return prompted(models, key) if key["kind"] == "prompted" else trained(models, key)


if __name__ == "__main__":
    settings = {
        "model": "smollm2-135m",
        "small_model": SIZE,
        "names": len(NAMES),
        "batch": BATCH,
        "learning_rate": RATE,
        "schedule": "cosine, warm-up a twentieth of the steps",
        "steps": STEPS,
        "training_items": ITEMS,
        "prompted_items": PROMPTED_ITEMS,
        "tested_items": TESTED_ITEMS,
    }
    main(__file__, PLAN, Models, measure, probe=PROBE, settings=settings)
