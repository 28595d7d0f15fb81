"""Log-probabilities by one plain pass of a model, to compare scores with."""

import torch


def log_prob(model, tokenizer, context: str, continuation: str) -> float:
    """The log-probability of a continuation; without a context, of all tokens but the first."""
    ids = tokenizer(context + continuation, add_special_tokens=False).input_ids
    start = len(tokenizer(context, add_special_tokens=False).input_ids) if context else 1
    with torch.no_grad():
        logits = model(torch.tensor([ids])).logits[0].double().log_softmax(-1)
    return sum(logits[place - 1, ids[place]].item() for place in range(start, len(ids)))
