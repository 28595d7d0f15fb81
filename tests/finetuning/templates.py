"""Chat templates for tests: tiny's own with changes that real templates have."""

from course_pkg.finetuning.conversations import Conversation, Message
from course_pkg.finetuning.masking import IGNORE_INDEX
from course_pkg.lm.tiny import CHAT_TEMPLATE, tiny_tokenizer

CONTENT = "message['content']"
HEADER = "'<|im_start|>' + message['role'] + '\n'"
PROMPT = "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"


def marked(before: str, inside: str, after: str) -> str:
    """A template with a generation mark around a part of each answer; the parts are expressions."""
    return (
        "{% for message in messages %}{% if message['role'] == 'assistant' %}"
        f"{{{{ {before} }}}}{{% generation %}}{{{{ {inside} }}}}{{% endgeneration %}}"
        f"{{{{ {after} }}}}"
        f"{{% else %}}{{{{ {HEADER} + {CONTENT} + '<|im_end|>\n' }}}}{{% endif %}}{{% endfor %}}"
        f"{PROMPT}"
    )


MARKED = marked(HEADER, f"{CONTENT} + '<|im_end|>'", "'\n'")
NO_SYSTEM = CHAT_TEMPLATE.replace(
    "{% for message in messages %}",
    "{% for message in messages %}{% if message['role'] == 'system' %}"
    "{{ raise_exception('no system turns') }}{% endif %}",
)


def tokenizer_with(template: str):
    tokenizer = tiny_tokenizer()
    tokenizer.chat_template = template
    return tokenizer


def replaced(old: str, new: str):
    """A tokenizer whose template is tiny's, with a replacement."""
    assert old in CHAT_TEMPLATE
    return tokenizer_with(CHAT_TEMPLATE.replace(old, new))


def chat(*texts: str, system: str | None = None, id: str = "") -> Conversation:
    """A conversation of these texts, by the user and the assistant in turn."""
    roles = ("user", "assistant") * (len(texts) // 2)
    turns = [Message(role, text) for role, text in zip(roles, texts, strict=True)]
    if system:
        turns.insert(0, Message("system", system))
    return Conversation(tuple(turns), id)


def learned(example, tokenizer) -> list[str]:
    """The texts of the runs of labels."""
    runs = []
    run = []
    for label in (*example.labels, IGNORE_INDEX):
        if label != IGNORE_INDEX:
            run.append(label)
        elif run:
            runs.append(tokenizer.decode(run))
            run = []
    return runs
