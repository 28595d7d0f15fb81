"""How long does one iteration take? SmolLM2 on one thread, with prompts and sequences packed.

    python book/experiments/iteration_times.py            run what is missing of the record
    python book/experiments/iteration_times.py --confirm  after an edit: run one short row again

An iteration of a server reads whole prompts and adds a token to sequences that have a cache. All
tokens are packed into one row, as an engine does, so that each weight is read once. Attention is
computed for each prompt by itself and for the sequences, which have equal lengths, together.
Seconds are the processor's, not the clock's: the median of several runs.
"""

import statistics
import time

import torch
import torch.nn.functional as F
from record import main

from course_pkg.lm.decoder import Decoder
from course_pkg.lm.load import load
from course_pkg.pages.datasets import load_examples
from course_pkg.serving.kv_cache import ContiguousCache

RUNS = 5
DATA = ("navigator/train.jsonl",)
PROMPTS = (1, 16, 64, 128, 256, 512, 768)  # tokens
SEQUENCES = {32: (1, 4, 16, 32), 128: (1, 4, 16, 32), 512: (1, 4, 16), 1024: (1, 4, 8)}
MIXED = (([64], 8, 256), ([128, 64], 16, 128), ([256], 4, 512), ([384], 16, 256))
PROBE = {"prompts": [16], "sequences": 2, "context": 32}


def plan() -> list[dict]:
    """The rows: lengths of the prompts, number of sequences, keys that each of them sees."""
    alone = [([tokens], 0, 0) for tokens in PROMPTS]
    several = [([64] * 4, 0, 0), ([128] * 3, 0, 0)]
    decoding = [([], number, keys) for keys in SEQUENCES for number in SEQUENCES[keys]]
    rows = [*alone, *several, *decoding, *MIXED]
    return [PROBE] + [dict(zip(PROBE, row, strict=True)) for row in rows]


class Task:
    """The model, and a text."""

    def __init__(self) -> None:
        torch.set_num_threads(1)
        model, tokenizer = load("smollm2-135m")
        self.model = Decoder.from_transformers(model)
        examples = load_examples("navigator", "train")
        text = "\n\n".join(f"{example.prompt}\n{example.response}" for example in examples)
        self.ids = tokenizer(text, return_tensors="pt").input_ids  # (1, tokens)


class Packed:
    """An `attend` for prompts and, after them in the same row, one token of every sequence."""

    def __init__(self, task: Task, prompts: list[int], sequences: int, context: int) -> None:
        self.prompts, self.sequences = prompts, sequences
        parts = [task.ids[:, :tokens] for tokens in prompts]
        places = [torch.arange(tokens) for tokens in prompts]
        if sequences:
            cache = ContiguousCache(task.model.config)
            task.model(task.ids[:, : context - 1], attend=cache.attend, last_only=True)
            self.kept = [
                [F.pad(x.expand(sequences, -1, -1, -1), (0, 0, 0, 1)) for x in storage.held]
                for storage in cache.layers
            ]  # (sequences, kv_heads, context, head_dim); the last place is for the new token
            parts.append(task.ids[:, context - 1].expand(1, sequences))
            places.append(torch.full((sequences,), context - 1))
        self.ids, self.positions = torch.cat(parts, dim=1), torch.cat(places)
        lengths = torch.tensor([*prompts, *[1] * sequences])
        self.ends = lengths.cumsum(0) - 1  # the places that are scored, as only they are needed

    def attend(self, layer, query, key, value):
        """query: (1, heads, tokens, head_dim), and so the result; key, value: with kv_heads."""
        read, start = torch.empty_like(query), 0
        for tokens in self.prompts:
            own = slice(start, start + tokens)
            each = (x[:, :, own] for x in (query, key, value))
            read[:, :, own] = F.scaled_dot_product_attention(*each, is_causal=True, enable_gqa=True)
            start += tokens
        if self.sequences:
            for kept, new in zip(self.kept[layer], (key, value), strict=True):
                kept[:, :, -1] = new[0, :, start:].transpose(0, 1)
            new = query[0, :, start:].transpose(0, 1)[:, :, None]  # (sequences, heads, 1, head_dim)
            seen = F.scaled_dot_product_attention(new, *self.kept[layer], enable_gqa=True)
            read[0, :, start:] = seen[:, :, 0].transpose(0, 1)
        return read


@torch.no_grad()
def measure(task: Task, key: dict) -> dict:
    """The median time of one iteration, and the most likely next token of each end."""
    packed, seconds = Packed(task, **key), []
    keep_ends = task.model.norm.register_forward_pre_hook(lambda _, x: x[0][:, packed.ends])
    for _ in range(RUNS + 1):  # the first is not counted
        started = time.process_time()
        logits = task.model(packed.ids, packed.positions, packed.attend)  # (1, ends, vocab)
        seconds.append(time.process_time() - started)
    keep_ends.remove()
    best = logits[0].argmax(-1).tolist()
    return {"next": best, "iteration_seconds": statistics.median(seconds[1:])}


if __name__ == "__main__":
    settings = {"runs": RUNS, "threads": 1}
    main(__file__, plan(), Task, measure, probe=PROBE, settings=settings, data=DATA)
