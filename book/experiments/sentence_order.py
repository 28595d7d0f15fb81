"""What the order of sentences and of words does to perplexity. A bigram model and SmolLM2.

    python book/experiments/sentence_order.py            run what is missing of the record
    python book/experiments/sentence_order.py --confirm  after an edit: run one short row again

The texts are the navigator's held-out answers: three sentences each, without their labels. One row
has the mean NLL per token of every text, for one model and one way of ordering. A way has several
versions (every other order of the three sentences, several shuffles); a text's value is their mean.
"""

import random
from itertools import permutations
from statistics import fmean

import torch
from record import main

from course_pkg.lm.load import load
from course_pkg.metrics.perplexity import NGramModel, perplexity
from course_pkg.pages.datasets import load_examples

SHUFFLES = 3
# Answers on one topic stand next to each other in pairs, so steps of two lead to three topics.
STEPS = ((2, 4), (6, 12))
ORDERS = ("original", "sentences", "mixed", "words")
DATA = ("navigator/held-out.jsonl", "navigator/train.jsonl")
PROBE = {"scorer": "SmolLM2", "order": "original"}


def plan() -> list[dict]:
    """The rows: each model on each way of ordering."""
    return [{"scorer": name, "order": way} for name in ("bigrams", "SmolLM2") for way in ORDERS]


def sentences_of(example) -> list[str]:
    """The three sentences of an answer, without their labels."""
    return [line.split(": ", 1)[1] for line in example.response.split("\n")]


def versions(order: str) -> list[list[str]]:
    """All versions of the texts in one way of ordering, each version a list of texts."""
    examples = load_examples(split="held-out")
    answers = [sentences_of(example) for example in examples]
    size = len(answers)
    if order == "original":
        found = [answers]
    elif order == "sentences":
        others = list(permutations(range(3)))[1:]
        found = [[[a[place] for place in places] for a in answers] for places in others]
    elif order == "mixed":
        places = [[(i, (i + b) % size, (i + c) % size) for i in range(size)] for b, c in STEPS]
        for first, second, third in (three for version in places for three in version):
            topics = {examples[i].topic for i in (first, second, third)}
            assert len(topics) == 3, topics
        found = [
            [[answers[i][k] for k, i in enumerate(three)] for three in version]
            for version in places
        ]
    else:
        generator = random.Random(0)
        found = [
            [[shuffled(sentence, generator) for sentence in a] for a in answers]
            for _ in range(SHUFFLES)
        ]
    return [[" ".join(parts) for parts in version] for version in found]


def shuffled(sentence: str, generator: random.Random) -> str:
    """The words of a sentence in random order."""
    words = sentence.split()
    return " ".join(generator.sample(words, len(words)))


def prepare() -> dict:
    """Name → function that scores texts, one likelihood for each."""
    torch.set_num_threads(1)
    learned = [" ".join(sentences_of(e)).split() for e in load_examples(split="train")]
    bigrams = NGramModel(learned, order=2)
    model, tokenizer = load("smollm2-135m")
    end = tokenizer.convert_tokens_to_ids("<|endoftext|>")
    return {
        "bigrams": lambda texts: [bigrams.score([text.split()]) for text in texts],
        "SmolLM2": lambda texts: perplexity(model, tokenizer, texts, bos=end).per_text,
    }


def measure(scorers: dict, key: dict) -> dict:
    """One row: nats per token of every text, the mean over the versions."""
    score = scorers[key["scorer"]]
    scored = [score(texts) for texts in versions(key["order"])]
    nats = [fmean(part.nll_per_token for part in parts) for parts in zip(*scored, strict=True)]
    return {"versions": len(scored), "nats_per_token": nats}


if __name__ == "__main__":
    settings = {"shuffles": SHUFFLES, "steps": [list(pair) for pair in STEPS], "threads": 1}
    main(__file__, plan(), prepare, measure, probe=PROBE, settings=settings, data=DATA)
