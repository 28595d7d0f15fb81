"""Where the answers are in a rendered conversation, in characters and in tokens.

A template may mark what the assistant generates, by `{% generation %}`. Otherwise the conversation
is rendered turn by turn: an answer is what its turn adds. Nothing searches for the text of an
answer, because the prompt may contain the same words.

Chapter: finetuning/chat.
"""

import re
from typing import TYPE_CHECKING

from transformers.utils.chat_template_utils import render_jinja_template

from course_pkg.finetuning.conversations import Conversation
from course_pkg.finetuning.formats import ChatTemplateError, as_dicts, chat_text

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

Span = tuple[int, int]  # start and end, without the end
MARK = re.compile(r"\{%[-+]?\s*generation\s*[-+]?%\}")


def answer_spans(
    conversation: Conversation, tokenizer: "PreTrainedTokenizerBase"
) -> tuple[str, list[Span]]:
    """The rendered conversation, and the characters of each answer with its end-of-turn token.

    A span may include what the template writes after the end-of-turn token, such as a line break.
    Raises ChatTemplateError (a ValueError) if the template shows the answers in neither way,
    RecordError if it refuses the conversation.

    >>> from course_pkg.finetuning.conversations import Message
    >>> from course_pkg.lm.tiny import tiny_tokenizer
    >>> conversation = Conversation((Message("user", "Hi"), Message("assistant", "Yo")))
    >>> text, [(start, end)] = answer_spans(conversation, tiny_tokenizer())
    >>> text[start:end]
    'Yo<|im_end|>\\n'
    """
    text = chat_text(conversation.messages, tokenizer)
    if MARK.search(tokenizer.get_chat_template()):
        spans = _marked_spans(text, conversation, tokenizer)
    else:
        spans = _added_spans(text, conversation, tokenizer)
    _check_complete(text, spans, conversation)
    return text, spans


def _marked_spans(
    text: str, conversation: Conversation, tokenizer: "PreTrainedTokenizerBase"
) -> list[Span]:
    _, [spans] = render_jinja_template(
        [as_dicts(conversation.messages)],
        chat_template=tokenizer.get_chat_template(),
        return_assistant_tokens_mask=True,
        **tokenizer.special_tokens_map,
    )
    joined: list[Span] = []
    for start, end in spans:
        if joined and not text[joined[-1][1] : start].strip():  # a second mark in the same answer
            start = joined.pop()[0]
        joined.append((start, end))
    if len(joined) != len(conversation.answers):
        raise ChatTemplateError(
            f"the chat template marks {len(joined)} parts as generated in a conversation with "
            f"{len(conversation.answers)} answers; put {{% generation %}} around each whole answer"
        )
    return joined


def _added_spans(
    text: str, conversation: Conversation, tokenizer: "PreTrainedTokenizerBase"
) -> list[Span]:
    spans = []
    for position, message in enumerate(conversation.messages):
        if message.role != "assistant":
            continue
        before = chat_text(conversation.messages[:position], tokenizer, generation_prompt=True)
        after = chat_text(conversation.messages[: position + 1], tokenizer)
        for prefix in (before, after):
            if not text.startswith(prefix):
                raise ChatTemplateError(_difference(text, prefix, position + 1))
        spans.append((len(before), len(after)))
    return spans


def _check_complete(text: str, spans: list[Span], conversation: Conversation) -> None:
    """Raise an error if the template left out or changed a text (white space around it may go)."""
    answers = iter(spans)
    for number, message in enumerate(conversation.messages, start=1):
        start, end = next(answers) if message.role == "assistant" else (0, len(text))
        if message.content.strip() not in text[start:end]:
            raise ChatTemplateError(
                f"the chat template leaves out or changes turn {number}, by the {message.role}: "
                f"{message.content!r:.80}; use a template that writes each text as it is"
            )


def _difference(text: str, prefix: str, turn: int) -> str:
    differing = (i for i, (a, b) in enumerate(zip(text, prefix, strict=False)) if a != b)
    shared = next(differing, min(len(text), len(prefix)))
    return (
        f"the chat template writes a conversation differently once it goes on: rendered up to "
        f"turn {turn}, the text has {prefix[shared : shared + 40]!r} at character {shared}, the "
        f"whole has {text[shared : shared + 40]!r}; use a template that marks the answers with "
        "{% generation %}, or one that leaves earlier turns unchanged"
    )


def encode_at(
    text: str, boundaries: list[int], tokenizer: "PreTrainedTokenizerBase"
) -> tuple[list[int], list[int]]:
    """Token ids of a text, none of which spans a boundary, and how many come before each boundary.

    boundaries: ascending positions of characters. The tokens before a boundary equal those of the
    text that ends there, so a model that is given this text reads the tokens it was trained on. A
    token that would span a boundary ("\\n" + "\\n…" may be one token) is split there.
    Raises ValueError if the tokenizer can't encode the rest of a text by itself.

    >>> from course_pkg.lm.tiny import tiny_tokenizer
    >>> encode_at("中 Yo", [2], tiny_tokenizer())
    ([228, 184, 173, 32, 89, 111], [4])
    """

    def encode(part: str) -> list[int]:
        return tokenizer(part, add_special_tokens=False, verbose=False).input_ids

    counts: list[int] = []
    before: list[int] = []  # the tokens before the last split, which is at the character `cut`
    cut = 0
    rest = encode(text)
    for boundary in boundaries:
        head = encode(text[cut:boundary])
        counts.append(len(before) + len(head))
        if rest[: len(head)] != head:
            before += head
            cut = boundary
            rest = encode(text[boundary:])
    ids = before + rest
    if cut and tokenizer.decode(ids, clean_up_tokenization_spaces=False) != text:
        raise ValueError(
            f"a token spans the start or the end of an answer near {text[cut - 10 : cut + 10]!r}, "
            "and this tokenizer changes a text that is encoded in two parts; remove the white "
            "space at the start of the answer"
        )
    return ids, counts
