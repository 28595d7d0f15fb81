"""A chat in the terminal: turns, commands, and answers that Ctrl-C can stop::

    /reset        forget the conversation        /system TEXT  set the rules of the conversation
    /save FILE    write it to a file             /quit         end, as Ctrl-D does
    /paste        take the lines up to one that is only /end as one turn

Answers go to one stream and everything else to another, so a program that writes one turn a line
reads answers alone. Its lines are questions, whatever they begin with, because what is piped may be
anybody's text.
"""

import json
import signal
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from itertools import takewhile
from pathlib import Path
from typing import Any

from course_pkg.common.http_client import ServerError
from course_pkg.deployment.chat_model import ChatModel, ChatReply
from course_pkg.finetuning.conversations import Message
from course_pkg.finetuning.formats import as_dicts

Write = Callable[[str], Any]
ENDS = ("/quit", "/exit", "/bye")  # the first is the documented one
MEANT = ("quit", "exit")  # what people type who forget the slash; the model may be asked it
PASTE = "/paste"
PASTED = "/end"  # the line after a turn of several lines
HELP = (
    "commands: /reset, /system TEXT, /save FILE, /paste, /quit; Ctrl-C stops an answer, Ctrl-D ends"
)


class ChatSession:
    """A conversation with a model. seed: of the first answer; each further one has the next number.

    Args:
        write: gets the parts of answers, as they come.
        note: gets messages to the user, line by line.

    Attributes:
        unanswered: how many questions got no answer.
    """

    def __init__(self, model: ChatModel, write: Write, note: Write, seed: int | None = None):
        self.model = model
        self.write = write
        self.note = note
        self.seed = seed
        self.system: Message | None = None
        self.messages: list[Message] = []
        self.unanswered = 0
        self._asked = 0
        self._dropped = 0
        self._noted: set[str] = set()

    def run(self, lines: Iterable[str], *, commands: bool = True) -> None:
        """Answer line after line, until /quit or the end. commands: obey them; else ask them.

        Raises KeyboardInterrupt if Ctrl-C stops an answer and nobody types, without `commands`.
        """
        lines = iter(lines)
        for line in lines:
            text = line.strip()
            if commands and text in ENDS:
                return
            if commands and text == PASTE:
                if pasted := self._pasted(lines):
                    self.ask(pasted)
            elif commands and text.startswith("/"):
                self._command(*text.partition(" ")[::2])
            elif text:
                stopped = self.ask(text)
                if stopped and not commands:
                    raise KeyboardInterrupt  # nobody is there for whom the chat could go on
                if commands and text.casefold() in MEANT:
                    self.note("(that was a question to the model; /quit or Ctrl-D ends the chat)")

    def _pasted(self, lines: Iterator[str]) -> str:
        """The lines up to the one that ends a paste, as one text."""
        self.note(f"(paste your lines; {PASTED} on a line of its own ends them)")
        pasted = takewhile(lambda line: line.strip() != PASTED, lines)
        return "\n".join(line.rstrip("\r\n") for line in pasted).strip()

    def ask(self, question: str) -> bool:
        """Answer a question, and keep both unless there is no answer; whether Ctrl-C stopped it."""
        self._asked += 1
        seed = None if self.seed is None else self.seed + self._asked - 1
        answer = ""
        stopped = False
        try:
            asked = Message("user", question)
            collecting = interrupts() if self.model.in_process else nullcontext([])
            with collecting as interrupted:
                reply = self.model.reply([*self._rules, *self.messages, asked], seed)
                self._say_dropped(reply)
                self._say_notes(reply)
                for part in reply.texts:
                    answer += part
                    self.write(part)
                    if stopped := bool(interrupted):
                        break
        except KeyboardInterrupt:
            stopped = True
        except (ValueError, ServerError) as error:
            self._end(answer)
            self.unanswered += 1
            self.note(f"no answer: {error}; your turn is not kept")
            return False
        self._end(answer)
        if not answer.strip():
            self.unanswered += 1
            why = "stopped" if stopped else "the answer is empty"
            self.note(f"({why}; your turn is not kept)")
            return stopped
        if stopped:
            self.note("(stopped)")
        self.messages += [asked, Message("assistant", answer)]
        return stopped

    @property
    def _rules(self) -> Sequence[Message]:
        return [] if self.system is None else [self.system]

    def _say_dropped(self, reply: ChatReply) -> None:
        if reply.dropped != self._dropped:
            self._dropped = reply.dropped
            size = "" if reply.tokens is None else f", {reply.tokens} tokens are left"
            self.note(
                f"(the conversation is too long: the model no longer sees its oldest "
                f"{reply.dropped} messages{size})"
            )

    def _say_notes(self, reply: ChatReply) -> None:
        for note in reply.notes:
            if note not in self._noted:
                self._noted.add(note)
                self.note(f"({note})")

    def _end(self, answer: str) -> None:
        if answer and not answer.endswith("\n"):
            self.write("\n")

    def _command(self, name: str, rest: str) -> None:
        rest = rest.strip()
        if name == "/reset":
            self.messages.clear()
            self._dropped = 0
            self.note("(the conversation is empty again; the system turn stays)")
        elif name == "/system":
            self.set_system(rest)
        elif name == "/save":
            self._save(rest)
        else:
            self.note(HELP if name == "/help" else f"there is no {name}; {HELP}")

    def set_system(self, text: str) -> None:
        """Set the rules of the conversation; none for an empty text."""
        try:
            self.system = Message("system", text) if text else None
        except ValueError as error:
            self.note(f"the system turn stays as it was: {error}")
            return
        self.note(f"(the system turn is {text!r})" if text else "(there is no system turn now)")

    def _save(self, name: str) -> None:
        """Write the conversation as a line that `course finetune` reads."""
        if not name or not self.messages:
            self.note("nothing is saved: " + ("there is no turn yet" if name else "/save FILE"))
            return
        line = json.dumps(
            {"messages": as_dicts([*self._rules, *self.messages])}, ensure_ascii=False
        )
        try:
            with Path(name).expanduser().open("x", encoding="utf-8") as file:
                file.write(line + "\n")
        except FileExistsError:
            self.note(f"nothing is saved: {name} exists; give another name")
            return
        except OSError as error:
            self.note(f"nothing is saved: {error}")
            return
        self.note(f"({len(self.messages)} messages are in {name})")


@contextmanager
def interrupts() -> Iterator[list[int]]:
    """Collect Ctrl-C instead of raising it, so that no computation is torn; the second one raises.

    Outside the main thread, which alone gets signals, nothing changes.
    """
    seen: list[int] = []

    def handle(number: int, frame: Any) -> None:
        if seen:
            raise KeyboardInterrupt
        seen.append(number)

    try:
        before = signal.signal(signal.SIGINT, handle)
    except ValueError:
        yield seen
        return
    try:
        yield seen
    finally:
        signal.signal(signal.SIGINT, before)
