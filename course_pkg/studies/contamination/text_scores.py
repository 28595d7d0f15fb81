"""What a model says about texts, orders of texts, and codes: the scores of the tests here.

The first token of a text isn't scored, and no BOS is added: compare texts that begin alike.
"""

from collections.abc import Sequence

from torch import nn
from transformers import PreTrainedTokenizerBase as Tokenizer

from course_pkg.common.arguments import text_list
from course_pkg.evaluation.continuation_scores import score_continuations
from course_pkg.studies.contamination.exchangeability import draw_orders


def text_log_probs(
    model: nn.Module, tokenizer: Tokenizer, texts: Sequence[str]
) -> list[tuple[float, ...]]:
    """For each text, the log-probabilities of its tokens but the first, in nats."""
    encoded = _encode(tokenizer, text_list(texts))
    for text, ids in zip(texts, encoded, strict=True):
        if len(ids) < 2:
            raise ValueError(f"the text {text!r} has {len(ids)} tokens: give at least two")
    scores = score_continuations(model, encoded, [1] * len(encoded))
    return [score.log_probs for score in scores]


def order_log_probs(
    model: nn.Module,
    tokenizer: Tokenizer,
    shards: Sequence[Sequence[str]],
    *,
    others: int,
    seed: int = 0,
) -> list[list[float]]:
    """Each shard's log-probability in its given order, then in `others` random ones."""
    texts = []
    sizes = []
    for number, shard in enumerate(shards):
        items = text_list(shard, "item")
        orders = draw_orders(len(items), others, seed=1000 * seed + number)
        texts += ["\n\n".join(items[place] for place in order) for order in orders]
        sizes.append(len(orders))
    scores = iter([sum(values) for values in text_log_probs(model, tokenizer, texts)])
    return [[next(scores) for _ in range(size)] for size in sizes]


def code_log_probs(
    model: nn.Module, tokenizer: Tokenizer, prefix: str, codes: Sequence[str]
) -> list[float]:
    """The log-probability of each code right after the prefix, for `exposure`."""
    [start] = _encode(tokenizer, [prefix])
    whole = _encode(tokenizer, [prefix + code for code in text_list(codes, "code")])
    for code, ids in zip(codes, whole, strict=True):
        if ids[: len(start)] != start or len(ids) == len(start):
            raise ValueError(
                f"the prefix and {code!r} share a token: end it elsewhere, or use digits"
            )
    scores = score_continuations(model, whole, [len(start)] * len(whole))
    return [score.total for score in scores]


def _encode(tokenizer: Tokenizer, texts: Sequence[str]) -> list[list[int]]:
    return tokenizer(list(texts), add_special_tokens=False, verbose=False).input_ids
