"""The commands that use a new adapter, ready to paste.

Chapter: finetuning/chat.
"""

import re
import shlex
from pathlib import Path


def next_steps(model: str, folder: Path, method: str, chat: bool) -> list[tuple[str, list[str]]]:
    """What each command is for, and the command, perhaps in several lines.

    chat: whether the adapter was trained on conversations. `course serve` takes LoRA alone, so an
    adapter of another method is merged first.

    >>> [what for what, _ in next_steps("tiny", Path("mine"), "lora", chat=True)]
    ['chat', 'serve', 'ask it', 'evaluate', 'export']
    """
    base = [] if model == "smollm2-135m" else ["--model", model]
    name = re.sub(r"[^\w.-]+", "-", folder.resolve().name).strip("-.") or "adapter"
    adapter = str(folder)
    serve = [["course", "serve", *base, "--adapter", f"{name}={adapter}"]]
    if method != "lora":
        merged = f"{name}-merged"
        serve = [
            ["course", "export", adapter, "--base", model, "--format", "hf", "--output", merged],
            ["course", "serve", "--model", merged, "--served-model-name", name],
        ]
    task = ["course", "eval", "--task", "short-answers", *base]
    commands = {
        "chat": [["course", "chat", *base, "--adapter", adapter]],
        "serve": serve,
        "evaluate": [[*task], [*task, "--adapter", adapter]],
        "export": [["course", "export", adapter, "--base", model, "--format", "gguf"]],
    }
    if not chat:
        commands.pop("chat")
    steps = [(what, [shlex.join(line) for line in lines]) for what, lines in commands.items()]
    at = [what for what, _ in steps].index("serve") + 1
    steps.insert(at, ("ask it", [_request(name, chat)]))
    return steps


def _request(model: str, chat: bool) -> str:
    path = "chat/completions" if chat else "completions"
    asked = '"messages": [{"role": "user", "content": "Hello!"}]' if chat else '"prompt": "Once"'
    return (
        f"curl http://127.0.0.1:8000/v1/{path} -H 'Content-Type: application/json' "
        f'-d \'{{"model": "{model}", {asked}, "max_tokens": 80}}\''
    )
