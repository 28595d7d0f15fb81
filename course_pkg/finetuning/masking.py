"""Token ids and labels of conversations, with everything but answers masked out of the loss.

The labels equal the token ids in each answer and its end-of-turn token; elsewhere they are
IGNORE_INDEX. They depend on positions, so a padding token may equal the end token.
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, get_args

from course_pkg.common.arguments import require_choice, require_integer, require_string
from course_pkg.finetuning.conversations import (
    Conversation,
    Message,
    Problem,
    ProblemReport,
    RecordError,
)
from course_pkg.finetuning.formats import ChatTemplateError, answer_spans

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

IGNORE_INDEX = -100  # the label that cross-entropy skips, in torch and in transformers
Answers = Literal["all", "last"]


@dataclass(frozen=True)
class TokenizedExample:
    """Token ids, and as many labels; a label is IGNORE_INDEX where the loss skips the token."""

    input_ids: tuple[int, ...]
    labels: tuple[int, ...]

    def __post_init__(self) -> None:
        if len(self.input_ids) != len(self.labels):
            raise ValueError(
                f"expected a label for each of {len(self.input_ids)} token ids, "
                f"got {len(self.labels)}"
            )


@dataclass(frozen=True)
class TokenizeResult:
    """The tokenized conversations in their order, and a report of everything left out."""

    examples: tuple[TokenizedExample, ...]
    report: ProblemReport


def tokenize_example(
    prompt: str, response: str, tokenizer: "PreTrainedTokenizerBase"
) -> TokenizedExample:
    """Prompt and answer as token ids, with labels only on the answer and its end token."""
    question = Message("user", require_string(prompt, "prompt"))
    answer = Message("assistant", require_string(response, "response"))
    return tokenize_conversation(Conversation((question, answer)), tokenizer)


def tokenize_conversation(
    conversation: Conversation, tokenizer: "PreTrainedTokenizerBase", *, answers: Answers = "all"
) -> TokenizedExample:
    """A conversation as token ids, with labels only on answers and their end-of-turn tokens.

    What the template writes after an end-of-turn token has no label, and nothing follows the last
    label. Nothing is cut.

    Args:
        answers: "all" that are learned, or "last" for the last of these alone.

    Raises:
        ChatTemplateError: the template is absent, doesn't show where the answers are, or ends them
            without a special token.
        RecordError: the template refuses the conversation, or a text contains a special token,
            which would end the turn early.
        ValueError: the tokenizer has no end token.
    """
    if not isinstance(conversation, Conversation):
        raise TypeError(f"conversation must be a Conversation, got {conversation!r:.80}")
    require_choice(answers, "answers", get_args(Answers))
    if tokenizer.eos_token_id is None:
        raise ValueError("the tokenizer has no end token; set tokenizer.eos_token")
    special = {id for id, token in tokenizer.added_tokens_decoder.items() if token.special}
    _check_texts(conversation, tokenizer.convert_ids_to_tokens(sorted(special)))
    text, spans = answer_spans(conversation, tokenizer)
    ids, counts = encode_at(text, [edge for span in spans for edge in span], tokenizer)
    labels = [IGNORE_INDEX] * len(ids)
    parts = [
        part
        for answer, *part in zip(conversation.answers, counts[::2], counts[1::2], strict=True)
        if answer.learned
    ]
    for start, end in parts[-1:] if answers == "last" else parts:
        end = _after_end_token(ids, start, end, special, tokenizer)
        labels[start:end] = ids[start:end]
    return TokenizedExample(tuple(ids[:end]), tuple(labels[:end]))


def _check_texts(conversation: Conversation, special_tokens: Sequence[str]) -> None:
    for number, message in enumerate(conversation.messages, start=1):
        if named := [token for token in special_tokens if token in message.content]:
            raise RecordError(
                "special token in text",
                f"turn {number} contains {named[0]}, which the tokenizer reads as the token itself",
            )


def _after_end_token(
    ids: list[int], start: int, end: int, special: set[int], tokenizer: "PreTrainedTokenizerBase"
) -> int:
    """The position after the answer's last special token; only white space may follow it."""
    last = max((index for index in range(start, end) if ids[index] in special), default=None)
    if last is None or tokenizer.decode(ids[last + 1 : end]).strip():
        raise ChatTemplateError(
            f"the chat template ends an answer with {tokenizer.decode(ids[end - 5 : end])!r}, "
            "without a special token: a model trained on it would never learn to stop; end each "
            "answer (and its {% generation %} block) with {{ eos_token }}"
        )
    return last + 1


def tokenize_conversations(
    conversations: Iterable[Conversation],
    tokenizer: "PreTrainedTokenizerBase",
    *,
    answers: Answers = "all",
    max_length: int | None = None,
) -> TokenizeResult:
    """Tokenize conversations; leave out each that has a problem, and report it by its id.

    Args:
        max_length: in tokens; None for no limit. A longer conversation is left out, because
            truncation would lose the end of an answer with its end token.
    """
    if max_length is not None:
        require_integer(max_length, "max_length", 2)
    examples: list[TokenizedExample] = []
    problems: list[Problem] = []
    conversations = list(conversations)
    for conversation in conversations:
        try:
            example = tokenize_conversation(conversation, tokenizer, answers=answers)
            length = len(example.input_ids)
            if max_length is not None and length > max_length:
                raise RecordError("too long", f"{length} tokens, the limit is {max_length}")
            examples.append(example)
        except RecordError as error:
            where = conversation.id or "a conversation"
            problems.append(Problem(where, error.kind, error.detail))
    report = ProblemReport(len(conversations), len(examples), tuple(problems))
    return TokenizeResult(tuple(examples), report)


def encode_at(
    text: str, boundaries: list[int], tokenizer: "PreTrainedTokenizerBase"
) -> tuple[list[int], list[int]]:
    """Token ids of a text, none of which spans a boundary, and how many come before each boundary.

    The tokens before a boundary equal those of the text that ends there, so a model that is given
    this text reads the tokens it was trained on. A token that would span a boundary ("\\n" +
    "\\n…" may be one token) is split there.

    Args:
        boundaries: ascending positions of characters.

    >>> from course_pkg.lm.tiny import tiny_tokenizer
    >>> encode_at("中 Yo", [2], tiny_tokenizer())
    ([228, 184, 173, 32, 89, 111], [4])
    """
    pieces = _pieces(text, tokenizer)
    if [token for piece in pieces for token in _encode(piece, tokenizer)] != _encode(
        text, tokenizer
    ):
        pieces = [text]  # what this tokenizer does depends on more than the piece
    ids: list[int] = []
    counts: list[int] = []
    start = 0
    for piece in pieces:
        end = start + len(piece)
        inside = [boundary - start for boundary in boundaries[len(counts) :] if boundary <= end]
        piece_ids, piece_counts = _encode_piece(piece, inside, tokenizer)
        counts += [len(ids) + count for count in piece_counts]
        ids += piece_ids
        start = end
    return ids, counts


def _pieces(text: str, tokenizer: "PreTrainedTokenizerBase") -> list[str]:
    """The text from each special token to the next: nothing before an answer is encoded twice."""
    tokens = {token.content for token in tokenizer.added_tokens_decoder.values()} - {""}
    if not tokens:
        return [text]
    return re.split(f"(?={'|'.join(map(re.escape, sorted(tokens)))})", text)


def _encode_piece(
    text: str, boundaries: list[int], tokenizer: "PreTrainedTokenizerBase"
) -> tuple[list[int], list[int]]:
    """What `encode_at` returns, by encoding the text up to each boundary."""
    counts: list[int] = []
    before: list[int] = []  # the tokens before the last split, which is at the character `cut`
    cut = 0
    rest = _encode(text, tokenizer)
    for boundary in boundaries:
        head = _encode(text[cut:boundary], tokenizer)
        counts.append(len(before) + len(head))
        if rest[: len(head)] != head:
            before += head
            cut = boundary
            rest = _encode(text[boundary:], tokenizer)
    ids = before + rest
    if cut and tokenizer.decode(ids, clean_up_tokenization_spaces=False) != text:
        raise ValueError(
            f"a token spans the start or the end of an answer near {text[cut - 10 : cut + 10]!r}, "
            "and this tokenizer changes a text that is encoded in two parts; remove the white "
            "space at the start of the answer"
        )
    return ids, counts


def _encode(text: str, tokenizer: "PreTrainedTokenizerBase") -> list[int]:
    return tokenizer(text, add_special_tokens=False, verbose=False).input_ids
