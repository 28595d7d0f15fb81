"""From messages to the text that a chat model reads, and where the answers are in it.

A template may mark what the assistant generates, by `{% generation %}`. Otherwise the conversation
is rendered turn by turn: an answer is what its turn adds. Nothing searches for the text of an
answer, because the prompt may contain the same words.
"""

import copy
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

from jinja2 import TemplateError
from transformers.utils.chat_template_utils import render_jinja_template

from course_pkg.common.arguments import require_integer, require_string
from course_pkg.finetuning.conversations import Conversation, Message, RecordError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

# Templates end each answer with the tokenizer's end token, so that a model can learn to stop.
ALPACA = (  # Taori et al. 2023, for a task without an input
    "{{ 'Below is an instruction that describes a task. "
    "Write a response that appropriately completes the request.\n\n' }}"
    "{% for message in messages %}"
    "{% if message['role'] == 'assistant' %}"
    "{{ '### Response:\n' + message['content'] + eos_token + '\n\n' }}"
    "{% elif message['role'] == 'user' %}"
    "{{ '### Instruction:\n' + message['content'] + '\n\n' }}"
    "{% else %}{{ raise_exception('this template has no system turn') }}{% endif %}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '### Response:\n' }}{% endif %}"
)
BARE = (  # texts alone, each on a line
    "{% for message in messages %}"
    "{{ message['content'] }}{{ eos_token if message['role'] == 'assistant' }}{{ '\n' }}"
    "{% endfor %}"
)
MARK = re.compile(r"\{%[-+]?\s*generation\s*[-+]?%\}")
Span = tuple[int, int]  # start and end, without the end


class ChatTemplateError(ValueError):
    """A chat template is absent, or it can't show where the answers are or where they end."""


def chat_prompt(prompt: str, tokenizer: "PreTrainedTokenizerBase") -> str:
    """The text that a chat model reads for a user's prompt, up to the start of its answer.

    >>> from course_pkg.lm.tiny import tiny_tokenizer
    >>> chat_prompt("Hi", tiny_tokenizer())
    '<|im_start|>user\\nHi<|im_end|>\\n<|im_start|>assistant\\n'
    """
    turn = {"role": "user", "content": require_string(prompt, "prompt")}
    return _render([turn], tokenizer, True)


def chat_text(
    messages: Sequence[Message],
    tokenizer: "PreTrainedTokenizerBase",
    *,
    generation_prompt: bool = False,
    template: str | None = None,
) -> str:
    """The text of several turns, as the tokenizer's chat template writes it.

    Args:
        template: in place of the tokenizer's.
        generation_prompt: end with the start of the next answer.

    Raises:
        ChatTemplateError: the tokenizer has no template.
        RecordError: the template refuses the turns, for example a system turn.
    """
    return _render(as_dicts(messages), tokenizer, generation_prompt, template)


def as_dicts(messages: Sequence[Message]) -> list[dict[str, str]]:
    """The turns in the form that `tokenizer.apply_chat_template` takes."""
    return [{"role": message.role, "content": message.content} for message in messages]


def _render(
    turns: list[dict[str, str]],
    tokenizer: "PreTrainedTokenizerBase",
    generation_prompt: bool,
    template: str | None = None,
) -> str:
    if template is None and tokenizer.chat_template is None:
        raise ChatTemplateError("the tokenizer has no chat template; set tokenizer.chat_template")
    try:
        return tokenizer.apply_chat_template(
            turns,
            tokenize=False,
            add_generation_prompt=generation_prompt,
            chat_template=template,
        )
    except TemplateError as error:
        raise RecordError("refused by the template", str(error)) from None


def answer_spans(
    conversation: Conversation, tokenizer: "PreTrainedTokenizerBase"
) -> tuple[str, list[Span]]:
    """The rendered conversation, and the characters of each answer with its end-of-turn token.

    A span may include what the template writes after the end-of-turn token, such as a line break.

    Raises:
        ChatTemplateError: the template shows the answers in neither way.
        RecordError: it refuses the conversation.
    """
    text = chat_text(conversation.messages, tokenizer)
    if MARK.search(tokenizer.get_chat_template()):
        spans = _marked_spans(text, conversation, tokenizer)
    else:
        spans = _spans_turn_by_turn(text, conversation.messages, tokenizer)
        spans = spans or _added_spans(text, conversation, tokenizer)
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


def _spans_turn_by_turn(
    text: str, messages: Sequence[Message], tokenizer: "PreTrainedTokenizerBase"
) -> list[Span] | None:
    """The answers' spans if what a turn adds depends on the exchange before it alone, else None."""
    # Rendering all earlier turns again for each answer would take the square of a long chat's time.
    first = 1 if messages[0].role == "system" else 0
    spans: list[Span] = []
    length = 0
    for position in range(first + 1, len(messages), 2):
        context = (*messages[:first], *messages[max(first, position - 3) : position - 1])
        asked = (*context, messages[position - 1])
        known = chat_text(context, tokenizer) if position > first + 1 else ""
        before = chat_text(asked, tokenizer, generation_prompt=True)
        after = chat_text((*asked, messages[position]), tokenizer)
        begin = length + len(before) - len(known)
        end = length + len(after) - len(known)
        own = text[length:end]
        if not before.startswith(known) or after != known + own:
            return None
        if not own.startswith(before[len(known) :]):
            return None
        spans.append((begin, end))
        length = end
    return spans if length == len(text) else None


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


def with_template(tokenizer: "PreTrainedTokenizerBase", template: str) -> "PreTrainedTokenizerBase":
    """A copy of a tokenizer that has another chat template, a Jinja text."""
    if not template.strip():
        raise ChatTemplateError("the chat template is blank; give a Jinja text, such as ALPACA")
    changed = copy.deepcopy(tokenizer)
    changed.chat_template = template
    return changed


def prompt_tokens(messages: Sequence[Message], tokenizer: "PreTrainedTokenizerBase") -> int:
    """The number of tokens that a model reads before it answers the last message."""
    text = chat_text(messages, tokenizer, generation_prompt=True)
    return len(tokenizer(text, add_special_tokens=False, verbose=False).input_ids)


def keep_recent(
    messages: Sequence[Message], tokenizer: "PreTrainedTokenizerBase", limit: int
) -> tuple[Message, ...]:
    """The system turn, if there is one, and as many of the latest exchanges as fit.

    Args:
        limit: tokens of the rendered prompt, the start of the answer included; leave room for the
            answer itself.
    """
    require_integer(limit, "limit")
    last = messages[-1].role if messages else "no message"
    if last != "user":
        raise ValueError(f"the messages must end with a user turn, got {last}")
    first = 1 if messages[0].role == "system" else 0
    rules = tuple(messages[:first])
    rest = tuple(messages[first:])
    for start in [at for at, message in enumerate(rest) if message.role == "user"]:
        kept = rules + rest[start:]
        if (count := prompt_tokens(kept, tokenizer)) <= limit:
            return kept
    raise ValueError(
        f"the system turn and the last question need {count} tokens, the limit is {limit}; "
        "raise the limit, or shorten one of them"
    )
