"""`perplexity`: right answers that are not the model answer keep every point."""

import torch
from torch.nn import functional as F

from course_pkg.grading.contract.answer_key import answer_key
from course_pkg.grading.contract.draws import draw_variant
from tests.exercises.assignments import earning_everything


def batch_with_labels_and_lists(model, input_ids, attention_mask):
    """Labels of −100, and a list of tensors; the mask is the second argument."""
    positions = (attention_mask.cumsum(-1) - 1).clamp(min=0)
    with torch.no_grad():
        logits = model(input_ids, attention_mask, position_ids=positions).logits[:, :-1]
    real = (attention_mask[:, 1:] == 1) & (attention_mask[:, :-1] == 1)
    labels = torch.where(real, input_ids[:, 1:], -100)
    nll = F.cross_entropy(logits.transpose(1, 2), labels, reduction="none")
    return [row.sum() for row in nll], real.sum(-1).tolist()


def corpus_sorted_by_length(score, tokenizer, texts, batch_size):
    """The longest texts first, and a tensor of NLLs."""
    lengths = [len(ids) for ids in tokenizer(texts).input_ids]
    order = sorted((i for i, n in enumerate(lengths) if n > 1), key=lambda i: -lengths[i])
    nlls = torch.zeros(len(texts))
    tokens = sum(lengths[i] - 1 for i in order)
    for start in range(0, len(order), batch_size):
        rows = order[start : start + batch_size]
        batch = tokenizer([texts[i] for i in rows], padding=True, return_tensors="pt")
        nlls[rows] = score(**batch)[0]
    if not order:
        raise ValueError("nothing to score")
    return (nlls.sum() / tokens).exp(), nlls


def sliding_without_last_tokens(model, input_ids, window, stride):
    """No window's last token, which is a target only, goes through the model."""
    costs = torch.full((len(input_ids),), torch.nan)
    for start in range(0, max(1, len(input_ids) - window + stride), stride):
        part = input_ids[start : start + window]
        logits = model(part[None, :-1]).logits[0]
        new = F.cross_entropy(logits, part[1:], reduction="none").detach()
        done = int(costs.isfinite().sum())
        costs[done + 1 : start + len(part)] = new[max(done - start, 0) :]
    return costs[1:].sum(), len(costs) - 1


def test_without_a_name_there_is_the_exercise_of_the_documents():
    case = draw_variant(answer_key("perplexity"), "by-hand", "")
    assert (case["length"], case["mean_log_probability"]) == (100, -2.5)


OTHERS = {
    "batch": [batch_with_labels_and_lists],
    "corpus": [corpus_sorted_by_length],
    "sliding": [sliding_without_last_tokens],
}
test_another_right_answer_keeps_every_point = earning_everything("perplexity", OTHERS)
