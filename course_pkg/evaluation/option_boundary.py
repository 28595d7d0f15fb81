"""Where a context ends and an option begins, in tokens.

Both are encoded together and divided where the context's own tokens end. If one token joins both,
scoring begins with it, for all options of the question. White space at the end of a context moves
to the option, as in lm-eval 0.4.13. Source: Biderman et al. 2024 (arXiv 2405.14782), appendix A.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from transformers import PreTrainedTokenizerBase as Tokenizer

from course_pkg.common.arguments import require_list, require_string
from course_pkg.evaluation.token_tree import shared_length


@dataclass(frozen=True)
class EncodedOption:
    """A context and an option, scored from `start` on; merged: a token's text that joins both."""

    ids: tuple[int, ...]
    start: int
    merged: str | None = None


def encode_options(
    tokenizer: Tokenizer,
    context: str,
    options: Sequence[str],
    *,
    delimiter: str = " ",
) -> list[EncodedOption]:
    """Encode a context with each of its options.

    Args:
        context: may be empty; then the tokenizer's BOS, or else its EOS, takes its place.
        delimiter: between context and option; "" after a chat template.
    """
    check_options(context, options, delimiter)
    bare = context.rstrip()
    written = [context[len(bare) :] + delimiter + option for option in options]
    before = encode(tokenizer, bare) if bare else []
    if not before:
        first = _first_token(tokenizer)
        encoded = [tokenizer(text, add_special_tokens=False).input_ids for text in written]
        return [EncodedOption((first, *ids), 1) for ids in encoded]
    whole = [encode(tokenizer, bare + text) for text in written]
    shared = [shared_length(before, ids) for ids in whole]
    merged = [
        tokenizer.decode([ids[length]]) if length < len(before) else None
        for ids, length in zip(whole, shared, strict=True)
    ]
    for number, (ids, length) in enumerate(zip(whole, shared, strict=True)):
        if length == len(ids):
            raise ValueError(f"the tokenizer has no token for option {number}, {options[number]!r}")
    start = min(shared)
    # If even the context's first token has merged, nothing precedes the scored tokens.
    extra = () if start else (_first_token(tokenizer),)
    return [
        EncodedOption((*extra, *ids), start + len(extra), text)
        for ids, text in zip(whole, merged, strict=True)
    ]


def encode(tokenizer: Tokenizer, text: str) -> list[int]:
    """The ids of a prompt, with a BOS or other special tokens, but no second BOS."""
    begun = bool(tokenizer.bos_token) and text.startswith(tokenizer.bos_token)
    return tokenizer(text, add_special_tokens=not begun).input_ids


def _first_token(tokenizer: Tokenizer) -> int:
    for token in (tokenizer.bos_token_id, tokenizer.eos_token_id):
        if token is not None:
            return token
    raise ValueError(
        "the context is empty, and the tokenizer has neither a BOS nor an EOS to take its place: "
        "give a context"
    )


def check_options(context: str, options: Sequence[str], delimiter: str) -> None:
    """Raise ValueError or TypeError for options that no tokenizer could score behind a context."""
    require_string(context, "context")
    require_string(delimiter, "delimiter")
    require_list(options, "options", "put the options into [ ]")
    if not options:
        raise ValueError("options is empty: give at least one")
    for number, option in enumerate(options):
        if not require_string(option, f"option {number}").strip():
            raise ValueError(
                f"option {number} is {option!r}: an option without text has no token to score, and "
                "its length is 0"
            )
        for left, right in ((context, delimiter), (delimiter, option)):
            if left.endswith(" ") and right.startswith(" "):
                raise ValueError(
                    f"two spaces meet between {left[-20:]!r} and {right[:20]!r}: leave one out, "
                    "because models rarely read two"
                )
        if not delimiter and context.endswith(" ") and option.startswith(" "):
            raise ValueError(f"two spaces meet before option {number}, {option!r}: leave one out")
