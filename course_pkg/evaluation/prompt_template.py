"""Few-shot prompts: a template, filled in for some solved examples and then for the question::

    description + (question + delimiter + answer + separator) for each example + question

As a chat, the description is the system message, and no delimiter follows. Source: Brown et al.
2020 (GPT-3), section 2.4 and appendix G.
"""

import random
import string
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from jinja2 import TemplateError
from transformers import PreTrainedTokenizerBase as Tokenizer

from course_pkg.common.arguments import require_integer, require_list

Fields = Mapping[str, str]  # what a template is filled with; "answer" is the example's answer


@dataclass(frozen=True)
class Prompt:
    """A text to continue, and the delimiter that comes before its continuation."""

    text: str
    delimiter: str


@dataclass(frozen=True)
class PromptTemplate:
    """How to write a question, with fields in braces, and what stands between the parts.

    >>> template = PromptTemplate("Q: {question}\\nA:")
    >>> template.render({"question": "2 + 2?"}, [{"question": "1 + 1?", "answer": "2"}])
    Prompt(text='Q: 1 + 1?\\nA: 2\\n\\nQ: 2 + 2?\\nA:', delimiter=' ')
    """

    question: str = "Question: {question}\nAnswer:"
    delimiter: str = " "
    separator: str = "\n\n"
    description: str = ""

    def __post_init__(self) -> None:
        if "answer" in self.fields:
            raise ValueError(
                "the template contains {answer}, which would show the question's answer: end it "
                "where the answer begins"
            )
        if self.question[-1:].isspace() and self.delimiter[:1].isspace():
            raise ValueError(
                f"the template ends in white space, and the delimiter is {self.delimiter!r}: leave "
                "one of them out"
            )

    @property
    def fields(self) -> list[str]:
        """The names of the fields that a question must have."""
        try:
            parts = list(string.Formatter().parse(self.question))
        except ValueError as error:
            raise ValueError(
                f"the template is not well formed ({error}): write {{{{ for a brace"
            ) from None
        for _, name, width, conversion in parts:
            if width or conversion:  # a width of billions fills the memory
                raise ValueError(f"the template formats {{{name}}}: write the name alone in braces")
        return [name for _, name, _, _ in parts if name is not None]

    def render(
        self, question: Fields, examples: Sequence[Fields] = (), *, chat: Tokenizer | None = None
    ) -> Prompt:
        """The prompt for a question. chat: a tokenizer, to write it with its chat template."""
        asked = self._fill(question)
        solved = []
        for number, example in enumerate(examples):
            if "answer" not in example:
                raise ValueError(f"example {number} has no field 'answer'")
            solved.append((self._fill(example), example["answer"]))
        if any(text == asked for text, _ in solved):
            raise ValueError(
                "the question is one of its own examples, so that its answer is in the prompt: "
                "take the examples from other data"
            )
        if chat is not None:
            return Prompt(self._chat(question, examples, chat), delimiter="")
        blocks = [f"{text}{self.delimiter}{answer}{self.separator}" for text, answer in solved]
        return Prompt("".join([self.description, *blocks, asked]), self.delimiter)

    def turns(self, question: Fields, examples: Sequence[Fields] = ()) -> list[dict[str, str]]:
        """The same prompt as the messages of a chat, for a server that has the chat template."""
        turns = []
        if self.description.strip():
            turns.append({"role": "system", "content": self.description.strip()})
        for example in examples:
            turns.append({"role": "user", "content": self._fill(example)})
            turns.append({"role": "assistant", "content": example["answer"]})
        turns.append({"role": "user", "content": self._fill(question)})
        return turns

    def _chat(self, question: Fields, examples: Sequence[Fields], tokenizer: Tokenizer) -> str:
        if not tokenizer.chat_template:
            raise ValueError("the tokenizer has no chat template: leave `chat` out")
        turns = self.turns(question, examples)
        try:
            return tokenizer.apply_chat_template(turns, tokenize=False, add_generation_prompt=True)
        except TemplateError as error:
            roles = ", ".join(turn["role"] for turn in turns)
            raise ValueError(
                f"the model's chat template refuses the turns {roles} ({error}): if it has no "
                "system turn, leave out the task's `description`"
            ) from None

    def _fill(self, fields: Fields) -> str:
        if missing := [name for name in self.fields if name not in fields]:
            raise ValueError(
                f"the template needs the field {missing[0]!r}, but the question has "
                f"{', '.join(fields) or 'none'}"
            )
        return self.question.format_map(fields)


def choose_examples(pool: Sequence[Fields], count: int, seed: int = 0) -> list[Fields]:
    """Draw `count` different examples from a pool; the same seed gives the same ones."""
    require_list(pool, "pool", "put the examples into [ ]")
    require_integer(count, "count", 0)
    if count > len(pool):
        raise ValueError(f"the pool has {len(pool)} examples, but {count} are wanted")
    return random.Random(seed).sample(list(pool), count)
