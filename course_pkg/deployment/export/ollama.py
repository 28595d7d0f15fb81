"""A Modelfile, with which Ollama takes a GGUF file and its chat template.

Ollama's templates are Go's, a GGUF file's are Jinja. The parts of the chat template around the
messages are found by applying it to marked messages, and written in Go's language, if the template
writes each message in one way, whatever the others are.

Source: docs/modelfile.md and docs/template.md of Ollama.
"""

import re
from dataclasses import dataclass

from jinja2 import TemplateError
from transformers import PreTrainedTokenizerBase as Tokenizer

from course_pkg.lm.answer_end import end_ids

SYSTEM, USER, ANSWER, NEXT = "⟪system⟫", "⟪user⟫", "⟪answer⟫", "⟪next⟫"
_CHAT = (("system", SYSTEM), ("user", USER), ("assistant", ANSWER), ("user", NEXT))
_NOT_IN_GO = ("{{", "}}", '"""')


@dataclass(frozen=True)
class ChatParts:
    """What a template writes before and after a message of each role, and before an answer.

    Attributes:
        system: the system prompt of a chat that gives none, or None.
    """

    before: dict[str, str]
    after: dict[str, str]
    answer: str
    system: str | None


def modelfile(tokenizer: Tokenizer, gguf: str) -> str | None:
    """The Modelfile for a GGUF file, named relative to it; None if the template has no such parts.

    None too if a name or a token has quotes or line breaks, which could end a directive and begin
    another.
    """
    parts = chat_parts(tokenizer)
    stops = tokenizer.convert_ids_to_tokens(end_ids(tokenizer))
    # A Modelfile knows no escapes.
    if parts is None or not all(t.isprintable() and '"' not in t for t in [gguf, *stops]):
        return None
    template = "{{ range .Messages }}"
    for number, role in enumerate(parts.before):
        condition = "else if" if number else "if"
        template += f'{{{{ {condition} eq .Role "{role}" }}}}'
        template += parts.before[role] + "{{ .Content }}" + parts.after[role]
    template += "{{ end }}{{ end }}" + parts.answer
    lines = [f"FROM ./{gguf}", f'TEMPLATE """{template}"""']
    if parts.system is not None:
        lines.append(f'SYSTEM """{parts.system}"""')
    lines += [f'PARAMETER stop "{stop}"' for stop in stops]
    return "\n".join(lines) + "\n"


def chat_parts(tokenizer: Tokenizer) -> ChatParts | None:
    """The parts of the tokenizer's chat template; None without one, or if it has no such parts."""
    if tokenizer.chat_template is None:
        return None
    try:
        chat = _applied(tokenizer, *_CHAT)
        prompt = _applied(tokenizer, *_CHAT, answer=True)
        whole = re.fullmatch(f"(.*){SYSTEM}(.*){USER}(.*){ANSWER}(.*){NEXT}(.*)", chat, re.DOTALL)
        alone = re.fullmatch(f"(.*){SYSTEM}(.*)", _applied(tokenizer, _CHAT[0]), re.DOTALL)
        without = re.fullmatch(f"(.*){USER}(.*)", _applied(tokenizer, _CHAT[1]), re.DOTALL)
    except (TemplateError, ValueError):
        return None
    if not (whole and alone and without):
        return None
    after = {"system": alone[2], "user": whole[5]}
    before = {"system": whole[1], "user": whole[2].removeprefix(after["system"])}
    before["assistant"] = whole[3].removeprefix(after["user"])
    after["assistant"] = whole[4].removesuffix(before["user"])
    texts = dict(_CHAT[:3])
    rebuilt = "".join(before[role] + texts[role] + after[role] for role in before)
    rebuilt += before["user"] + NEXT + after["user"]
    system = without[1].removesuffix(before["user"])
    if system:
        system = system.removeprefix(before["system"]).removesuffix(after["system"])
        first = before["system"] + system + after["system"] + before["user"]
    else:
        first = before["user"]
    whole = rebuilt == chat and prompt.startswith(chat) and without[1] == first
    edges = prompt[-1:] + system[:1] + system[-1:]  # beside the quotes around both texts
    if not whole or '"' in edges or any(mark in prompt + system for mark in _NOT_IN_GO):
        return None
    return ChatParts(before, after, prompt.removeprefix(chat), system or None)


def _applied(tokenizer: Tokenizer, *messages: tuple[str, str], answer: bool = False) -> str:
    chat = [{"role": role, "content": content} for role, content in messages]
    return tokenizer.apply_chat_template(chat, tokenize=False, add_generation_prompt=answer)
