"""`perplexity`, beside the student: how an answer is run on plain inputs.

It builds models and batches from numbers, calls the answer, and hands back plain values. It
imports no reference implementation, and knows no right answer.

Chapter: exercises.
"""

from typing import Any

import torch

from course_pkg.grading.asking import call_with

from .models import build_llama, build_model, foresee_after, real_tokens, watch

MASKED = ("course_pkg.metrics",)  # answers lie there: the grader shows a stub instead

SENTENCES = (
    "the ship sailed",
    "rain fell again",
    "bread needs time",
    "the old clock stopped",
    "a dog barked twice",
    "we walked home slowly",
)


def by_hand(rng: Any) -> dict[str, Any]:
    """Two texts by their mean log-probabilities, and one word by word."""
    if rng is None:
        words, probabilities = "the cat sat", [0.3, 0.5]
        length, mean = 100, -2.5
        other_length, other_mean = 10, -2.0
    else:
        words = SENTENCES[int(rng.integers(len(SENTENCES)))]
        count = len(words.split()) - 1
        low, high = int(rng.integers(1, 8)), int(rng.integers(14, 17))
        chosen = [low, high, int(rng.integers(8, 14))][:count]
        probabilities = [step / 20 for step in rng.permutation(chosen).tolist()]
        length, tenths = int(rng.integers(40, 161)), int(rng.integers(15, 40))
        other_length = length // int(rng.integers(3, 5))
        mean, other_mean = -tenths / 10, -(tenths + int(rng.integers(5, 16))) / 10
    return {
        "length": length,
        "mean_log_probability": mean,
        "words": words.split(),
        "probabilities": probabilities,
        "other_length": other_length,
        "other_mean_log_probability": other_mean,
    }


def _number(answer: Any, inputs: Any) -> Any:
    return answer


def _tensor(array: Any) -> torch.Tensor:
    return torch.from_numpy(array.numpy())


def _numbers(values: Any) -> torch.Tensor:
    """Numbers as float64, from a tensor, a list of numbers, or a list of single-number tensors."""
    return torch.as_tensor(values).detach().double()


def _pair(returned: Any, names: str) -> tuple[Any, Any]:
    if not isinstance(returned, tuple | list) or len(returned) != 2:
        raise TypeError(f"your function returned {type(returned).__name__}; wanted {names}")
    return returned[0], returned[1]


def call_log_probs(answer: Any, inputs: Any) -> Any:
    """Call `next_token_log_probs(logits, input_ids)`."""
    return call_with(answer, inputs, "logits", "input_ids", read=_tensor)


def call_batch(answer: Any, inputs: Any) -> Any:
    """Call `batch_nll(model, input_ids, attention_mask)`; also count the forward passes."""
    model = build_model(inputs["model"])
    if inputs["pads_add_nothing"]:
        foresee_after(model, inputs["pad"])
    passes = watch(model)
    returned = call_with(
        answer, inputs, "input_ids", "attention_mask", before=(model,), read=_tensor
    )
    nll, tokens = _pair(returned, "a pair (nll, tokens)")
    return {"nll": _numbers(nll), "tokens": _numbers(tokens), "passes": len(passes)}


def call_corpus(answer: Any, inputs: Any) -> Any:
    """Call `corpus_perplexity(score, tokenizer, texts, batch_size)`; also note the batches.

    `score` runs a Llama on one row after the other, and takes transformers' own loss.
    """
    model, tokenizer = build_llama(inputs["model"])
    tokenizer.padding_side = inputs["padding_side"]
    sizes = []

    def score(
        input_ids: torch.Tensor, attention_mask: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        rows = real_tokens(input_ids, attention_mask)
        sizes.append(len(rows))
        nll = torch.zeros(len(rows))
        for number, row in enumerate(rows):
            if len(row) < 2:
                raise RuntimeError(f"score got a text of {len(row)} tokens; it needs two or more")
            ids = torch.tensor([row])
            with torch.no_grad():
                nll[number] = model(input_ids=ids, labels=ids).loss * (len(row) - 1)
        return nll, torch.tensor([len(row) - 1 for row in rows])

    try:
        returned = call_with(
            answer, inputs, "texts", "batch_size", before=(score, tokenizer), changed=RuntimeError
        )
    except ValueError as error:
        return {"refused": True, "message": str(error)[:200]}
    perplexity, nlls = _pair(returned, "a pair (perplexity, nlls)")
    return {
        "refused": False,
        "perplexity": perplexity,
        "nlls": _numbers(nlls),
        "batches": sorted(sizes),
    }


def call_sliding(answer: Any, inputs: Any) -> Any:
    """Call `sliding_nll(model, input_ids, window, stride)`; also note the windows it looked at."""
    model = build_model(inputs["model"])
    passes = watch(model)
    ids = _tensor(inputs["input_ids"])
    nll, tokens = _pair(
        answer(model, ids, inputs["window"], inputs["stride"]), "a pair (nll, tokens)"
    )
    return {
        "nll": _numbers(nll),
        "tokens": _numbers(tokens),
        "windows": [row for rows in passes for row in rows],
    }


CALLS = {
    "by-hand/perplexity": _number,
    "by-hand/nll": _number,
    "by-hand/sentence": _number,
    "by-hand/bits": _number,
    "by-hand/together": _number,
    "log-probs": call_log_probs,
    "batch": call_batch,
    "corpus": call_corpus,
    "sliding": call_sliding,
}
VARIANTS = {"by-hand": by_hand}
