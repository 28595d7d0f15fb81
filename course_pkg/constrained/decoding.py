"""A plain greedy loop under a constraint, with and without jumps over forced tokens.

One forward pass computes as many tokens as it is given. A jump gives the model all forced tokens at
once, so a text whose layout is fixed, such as JSON, needs fewer passes.

Sources: the blog of outlines (2024) on coalescence; Zheng et al. (2024), SGLang, section 4, on
jump-forward decoding. Chapter: evaluation/constrained-output.
"""

from dataclasses import dataclass

import torch
from transformers import DynamicCache, PreTrainedModel

from course_pkg.arguments import require_bool, require_integer, require_list
from course_pkg.constrained.guide import FINISHED, Guide
from course_pkg.constrained.logits_processor import constrain


@dataclass(frozen=True)
class Generation:
    """tokens: the new ones, with the end token if there is one. passes: forward passes, including
    the prompt's. finished: whether the text is complete; otherwise max_new_tokens cut it off."""

    tokens: list[int]
    passes: int
    finished: bool


@torch.inference_mode()
def generate_greedily(
    model: PreTrainedModel,
    prompt: list[int],
    guide: Guide,
    max_new_tokens: int,
    *,
    jumps: bool = True,
) -> Generation:
    """The most likely allowed token, again and again, until an end token is the most likely.

    prompt: token ids, at least one. jumps: forced tokens are taken without asking the model.
    Raises ValueError for an empty prompt.

    >>> from course_pkg.constrained.compile import regex_guide
    >>> from course_pkg.constrained.vocabulary import vocabulary_of
    >>> from course_pkg.lm.load import load
    >>> model, tokenizer = load("tiny")
    >>> guide = regex_guide("answer: [01]", vocabulary_of(tokenizer))
    >>> generation = generate_greedily(model, [65], guide, 20)
    >>> tokenizer.decode(generation.tokens)[:8], generation.passes, generation.finished
    ('answer: ', 1, True)
    """
    require_list(prompt, "prompt", "give its token ids")
    require_integer(max_new_tokens, "max_new_tokens")
    require_bool(jumps, "jumps")
    if not prompt:
        raise ValueError("the prompt has no tokens: give at least one")
    cache = DynamicCache(config=model.config)
    state = guide.start
    tokens: list[int] = []
    unseen = list(prompt)  # tokens that the model has not read
    passes = 0
    while state != FINISHED and len(tokens) < max_new_tokens:
        new = guide.forced(state) if jumps else []
        if not new:
            ids = torch.tensor([unseen], device=model.device)  # (1, tokens)
            logits = model(ids, past_key_values=cache, logits_to_keep=1).logits[0, -1]  # (vocab,)
            passes += 1
            unseen = []
            new = [int(constrain(logits, guide.mask(state)).argmax())]
        for token in new[: max_new_tokens - len(tokens)]:
            tokens.append(token)
            unseen.append(token)
            state = guide.advance(state, token)
    return Generation(tokens, passes, state == FINISHED)
