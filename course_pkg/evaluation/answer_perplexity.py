"""Perplexity of answers, given their prompts: how probable the model finds what it should write.

A token that joins a prompt and its answer is scored.
"""

from collections.abc import Sequence

from torch import nn
from transformers import PreTrainedTokenizerBase as Tokenizer

from course_pkg.common.arguments import text_list
from course_pkg.evaluation.option_boundary import encode
from course_pkg.evaluation.prompt_template import PromptTemplate
from course_pkg.evaluation.token_tree import shared_length
from course_pkg.metrics.perplexity.likelihood import Likelihood, count_units
from course_pkg.metrics.perplexity.text_perplexity import PerplexityResult
from course_pkg.metrics.perplexity.token_scores import token_log_probs


def answer_perplexity(
    model: nn.Module,
    tokenizer: Tokenizer,
    prompts: Sequence[str],
    answers: Sequence[str],
    *,
    chat: bool = False,
    batch_size: int = 16,
) -> PerplexityResult:
    """Compute the perplexity of answers under a causal model, given their prompts.

    An answer follows its prompt directly, so one of the two has the space between them. chat: each
    prompt is a user's message in the tokenizer's chat template, and the answer the assistant's.
    """
    prompts = text_list(prompts, "prompt")
    answers = text_list(answers, "answer")
    if len(prompts) != len(answers):
        raise ValueError(f"{len(prompts)} prompts, but {len(answers)} answers: give one for each")
    limit = getattr(getattr(model, "config", None), "max_position_embeddings", None)
    sequences = []
    first = []
    for number, (prompt, answer) in enumerate(zip(prompts, answers, strict=True)):
        if not prompt or not answer:
            raise ValueError(f"pair {number} has an empty prompt or answer: leave it out")
        if chat:
            prompt = PromptTemplate("{prompt}").render({"prompt": prompt}, chat=tokenizer).text
        ids = encode(tokenizer, prompt + answer)
        start = shared_length(encode(tokenizer, prompt), ids)
        if not 0 < start < len(ids):
            raise ValueError(
                f"pair {number} can't be divided in tokens, {prompt[-20:]!r} and {answer[:20]!r}: "
                "put a space or a line break between them"
            )
        if limit is not None and len(ids) > limit:
            raise ValueError(
                f"pair {number} has {len(ids)} tokens, but the model reads {limit}: shorten it"
            )
        sequences.append(ids)
        first.append(start)
    scores = token_log_probs(model, sequences, first=first, batch_size=batch_size)
    per_text = tuple(
        Likelihood.of(score.tolist(), **count_units(answer))
        for score, answer in zip(scores, answers, strict=True)
    )
    return PerplexityResult(**vars(Likelihood.total(per_text)), per_text=per_text)
