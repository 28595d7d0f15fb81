"""What perplexity costs: windows by their stride, batches against a loop. SmolLM2, one thread.

    python book/experiments/perplexity_cost.py            run what is missing of the record
    python book/experiments/perplexity_cost.py --confirm  after an edit: run one short row again

Windows: one long text, the course's examples one after the other, read through windows of 64 to 512
tokens at several strides, and in one piece. Batches: the same texts in batches and by the loop that
asks transformers for the loss of one text at a time. Seconds are the processor's, not the clock's.
"""

import random
import time

import torch
from record import main

from course_pkg.lm.load import load
from course_pkg.metrics.perplexity import perplexity, windows
from course_pkg.pages.datasets import load_examples, load_texts

WINDOW, LENGTH = 256, 1600  # tokens
STRIDES = (255, 224, 192, 128, 64, 32)
OTHER_WINDOWS = (64, 128, 512)
SETS = {"3–12": (3, 12), "3–60": (3, 60), "20–100": (20, 100)}  # words of a text
TEXTS = {"3–12": 64, "3–60": 32, "20–100": 16}
BATCH_SIZE = 32
DATA = ("navigator/train.jsonl", "passages/test.jsonl")
PROBE = {"stride": 255, "length": 300}


def plan() -> list[dict]:
    """The rows: windows (of WINDOW tokens where a key names no other size), then batches."""
    strides = [{"stride": stride, "length": LENGTH} for stride in (*STRIDES, None)]
    ways = [{"words": words, "way": way} for words in SETS for way in ("loop", "batches")]
    others = [
        {"window": window, "stride": stride, "length": LENGTH}
        for window in OTHER_WINDOWS
        for stride in (window - 1, window * 7 // 8, window * 3 // 4, window // 2, window // 4)
    ]
    return [PROBE, *strides, *ways, *others]


def prepare() -> tuple:
    """The model and the long text's token ids."""
    torch.set_num_threads(1)
    model, tokenizer = load("smollm2-135m")
    examples = load_examples("navigator", "train")
    text = "\n\n".join(f"{example.prompt}\n{example.response}" for example in examples)
    return model, tokenizer, tokenizer(text).input_ids


def measure(task: tuple, key: dict) -> dict:
    """One row: the value, what was computed for it, and the processor's time."""
    model, tokenizer, ids = task
    if "stride" in key:
        text = tokenizer.decode(ids[: key["length"]])
        size = len(tokenizer(text).input_ids)
        stride = key["stride"]
        most = None if stride is None else key.get("window", WINDOW)
        started = time.process_time()
        result = perplexity(model, tokenizer, text, stride=stride, max_length=most)
        seconds = time.process_time() - started
        read = size if stride is None else sum(w.end - w.start for w in windows(size, most, stride))
        return {**values(result), "tokens_read": read, "cpu_seconds": seconds}
    texts = cut(TEXTS[key["words"]], *SETS[key["words"]])
    way = loop if key["way"] == "loop" else batches
    way(model, tokenizer, texts[:2])
    started = time.process_time()
    nll, tokens = way(model, tokenizer, texts)
    seconds = time.process_time() - started
    return {"texts": len(texts), "nll": nll, "tokens": tokens, "cpu_seconds": seconds}


def values(result) -> dict:
    """What a row keeps of a result."""
    return {"nll": result.nll, "tokens": result.tokens, "perplexity": result.perplexity}


def batches(model, tokenizer, texts: list[str]) -> tuple[float, int]:
    """Total NLL and tokens, in batches of texts of like length."""
    result = perplexity(model, tokenizer, texts, batch_size=BATCH_SIZE)
    return result.nll, result.tokens


@torch.no_grad()
def loop(model, tokenizer, texts: list[str]) -> tuple[float, int]:
    """The same, one text after the other, by the loss of transformers."""
    nll = tokens = 0
    for text in texts:
        ids = tokenizer(text, return_tensors="pt").input_ids
        nll += model(input_ids=ids, labels=ids).loss.item() * (ids.shape[1] - 1)
        tokens += ids.shape[1] - 1
    return nll, tokens


def cut(number: int, least: int, most: int) -> list[str]:
    """So many texts of least to most words, cut from the course's own."""
    examples = load_examples("navigator", "train")
    words = " ".join([*load_texts(), *(f"{e.prompt} {e.response}" for e in examples)]).split()
    generator, texts, place = random.Random(0), [], 0
    for _ in range(number):
        size = generator.randint(least, most)
        texts.append(" ".join(words[place : place + size]))
        place += size
    return texts


if __name__ == "__main__":
    settings = {"window": WINDOW, "length": LENGTH, "batch_size": BATCH_SIZE, "threads": 1}
    main(__file__, plan(), prepare, measure, probe=PROBE, settings=settings, data=DATA)
