"""What all examples share, kept with the adapter: a system turn, or an instruction.

A model that was trained with it answers badly without it. So a chat template of the adapter's own
adds it to a chat that has none, and every program that uses the template does so too.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from course_pkg.finetuning.conversations import Conversation
from course_pkg.finetuning.own_data.data_file import FileExample

BREAK = "\n\n"  # between an instruction and its input
ADD_SYSTEM = (
    "{%- if not messages or messages[0]['role'] != 'system' %}"
    "{%- set messages = [{'role': 'system', 'content': SHARED}] + messages %}{%- endif %}"
)
ADD_INSTRUCTION = (
    "{%- set asked = namespace(turns=[]) %}{%- for turn in messages %}"
    "{%- if turn['role'] == 'user' and not (turn['content'] | string).startswith(SHARED) %}"
    "{%- set turn = {'role': 'user', 'content': SHARED ~ turn['content']} %}{%- endif %}"
    "{%- set asked.turns = asked.turns + [turn] %}{%- endfor %}"
    "{%- set messages = asked.turns %}"
)


@dataclass(frozen=True)
class SharedTurn:
    """A text that all examples have. role: "system", or "user" for the beginning of questions."""

    role: str
    text: str

    def added_to(self, template: str) -> str:
        """A chat template that adds the text where it is missing, and writes all else as before.

        >>> from course_pkg.finetuning.formats import chat_prompt, with_template
        >>> from course_pkg.lm.tiny import tiny_tokenizer
        >>> tokenizer = tiny_tokenizer()
        >>> template = SharedTurn("user", "Translate:\\n\\n").added_to(tokenizer.chat_template)
        >>> chat_prompt("Ja", with_template(tokenizer, template)).partition("<|im_end|>")[0]
        '<|im_start|>user\\nTranslate:\\n\\nJa'
        """
        adding = ADD_SYSTEM if self.role == "system" else ADD_INSTRUCTION
        escaped = self.text.encode("unicode_escape").decode("ascii").replace("'", "\\'")
        return adding.replace("SHARED", f"'{escaped}'") + template

    def __str__(self) -> str:
        what = "the system turn" if self.role == "system" else "the beginning of each question"
        return f"{what} {self.text.strip()!r:.80}"


def shared_turn(examples: Sequence[FileExample]) -> SharedTurn | None:
    """The system turn that all conversations have, or else the instruction before every question.

    An instruction ends in an empty line, and something different follows. None if they share
    neither, or have several questions each, of which later ones need no instruction.
    """
    chats = [example.messages for example in examples if isinstance(example, Conversation)]
    if len(chats) < max(2, len(examples)):
        return None
    firsts = {messages[0] for messages in chats}
    if len(firsts) == 1 and chats[0][0].role == "system":
        return SharedTurn("system", chats[0][0].content)
    if any([turn.role for turn in messages] != ["user", "assistant"] for messages in chats):
        return None
    questions = [messages[0].content for messages in chats]
    first, last = min(questions), max(questions)  # what these share, all share
    ends = [at + len(BREAK) for at in range(len(first)) if first.startswith(BREAK, at)]
    shared = first[: max((end for end in ends if last.startswith(first[:end])), default=0)]
    if not shared.strip() or shared in questions:
        return None
    return SharedTurn("user", shared)
