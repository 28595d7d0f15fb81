"""The conversations that a chat benchmark judges: the second turn sees the first answer.

A *writer* answers a batch of chats: it takes lists of messages and returns one text for each. The
loop asks all first questions at once, puts each answer into its own chat, and then asks all second
questions. So a mistake in the first answer stays visible, as in a real conversation.

Source: Zheng et al. 2023, section 2.2. Chapter: evaluation/chat-benchmarks.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from torch import nn
from transformers import PreTrainedTokenizerBase as Tokenizer

from course_pkg.common.arguments import require_list, require_string
from course_pkg.common.http_client import HttpClient
from course_pkg.evaluation.greedy import generate_greedy
from course_pkg.studies.chat_benchmarks.chat_questions import ChatQuestion

Chat = list[dict[str, str]]  # messages with "role" and "content"
Writer = Callable[[list[Chat]], list[str]]


@dataclass(frozen=True)
class Conversation:
    """A question, who answered, and one answer for each turn."""

    question: ChatQuestion
    answerer: str
    answers: tuple[str, ...]


def hold_conversations(
    write: Writer, questions: Sequence[ChatQuestion], answerer: str
) -> list[Conversation]:
    """Ask every question turn by turn; each later turn sees the answers before it.

    write: gives one answer to each chat of a batch. answerer: the name for the results. Raises
    ValueError if there is no question, or if the writer gives another number of answers.

    >>> question = ChatQuestion("q", "math", ("2 + 2?", "Plus 1?"), ("4", "5"), True)
    >>> def echo(chats):
    ...     return [f"{len(chat)} messages, last: {chat[-1]['content']}" for chat in chats]
    >>> hold_conversations(echo, [question], "echo")[0].answers
    ('1 messages, last: 2 + 2?', '3 messages, last: Plus 1?')
    """
    require_list(questions, "questions", "put the questions into [ ]")
    require_string(answerer, "answerer")
    if not questions:
        raise ValueError("questions is empty; give at least one ChatQuestion")
    chats: list[Chat] = [[] for _ in questions]
    answers: list[list[str]] = [[] for _ in questions]
    for turn in range(max(len(question.turns) for question in questions)):
        asked = [row for row, question in enumerate(questions) if turn < len(question.turns)]
        for row in asked:
            chats[row].append({"role": "user", "content": questions[row].turns[turn]})
        written = write([list(chats[row]) for row in asked])
        if len(written) != len(asked):
            raise ValueError(
                f"the writer gave {len(written)} answers to {len(asked)} chats: return one for each"
            )
        for row, text in zip(asked, written, strict=True):
            answers[row].append(require_string(text, "an answer"))
            chats[row].append({"role": "assistant", "content": text})
    return [
        Conversation(question, answerer, tuple(texts))
        for question, texts in zip(questions, answers, strict=True)
    ]


def reference_conversations(
    questions: Sequence[ChatQuestion], answerer: str = "reference"
) -> list[Conversation]:
    """The course's own answers, as if somebody had given them."""
    return [Conversation(question, answerer, question.references) for question in questions]


def greedy_writer(
    model: nn.Module,
    tokenizer: Tokenizer,
    *,
    max_new_tokens: int = 64,
    system: str | None = None,
) -> Writer:
    """A writer that continues each chat greedily with a local model.

    system: a message that comes before every chat. Raises ValueError for a tokenizer without a chat
    template, and what `generate_greedy` raises.
    """
    if not tokenizer.chat_template:
        raise ValueError("the tokenizer has no chat template: use an instruct model")

    def write(chats: list[Chat]) -> list[str]:
        before = [] if system is None else [{"role": "system", "content": system}]
        prompts = [
            tokenizer.apply_chat_template(
                [*before, *chat], tokenize=False, add_generation_prompt=True
            )
            for chat in chats
        ]
        written = generate_greedy(model, tokenizer, prompts, max_new_tokens=max_new_tokens)
        return [each.text for each in written]

    return write


def server_writer(
    client: HttpClient, model: str, *, max_tokens: int = 512, temperature: float = 0.0
) -> Writer:
    """A writer behind any address with OpenAI's chat completions, one request after another.

    Raises what the client raises, and ValueError for an answer without a text.
    """

    def write(chats: list[Chat]) -> list[str]:
        texts = []
        for chat in chats:
            body = {"model": model, "messages": chat}
            settings = {"max_tokens": max_tokens, "temperature": temperature}
            answer = client.post("/chat/completions", body | settings)
            try:
                texts.append(answer["choices"][0]["message"]["content"] or "")
            except (KeyError, IndexError, TypeError) as error:
                raise ValueError(
                    f"{client.address} must send a chat completion, got {str(answer)[:200]}"
                ) from error
        return texts

    return write
