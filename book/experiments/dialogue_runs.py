"""What do 30 dialogues teach? SmolLM2 tuned on all answers, on the last ones, and on plain strings.

    python book/experiments/dialogue_runs.py            run what is missing of the record
    python book/experiments/dialogue_runs.py --confirm  after an edit: run one short row again

"template" is the model's own chat template. "plain" is the form of Listing 8 in document 1: labels
in plain text, no system turn, no end token, and a loss on every token. The last answers of the test
dialogues are written twice: after the given earlier answers, and after the model's own ones.
"""

from instruction_task import SETTINGS, Task
from record import main

from course_pkg.finetuning.conversations import Conversation, Message
from course_pkg.finetuning.formats import chat_text
from course_pkg.finetuning.masking import TokenizedExample, tokenize_conversation
from course_pkg.studies.instructions.instruction_data import load_dialogues

EPOCHS, BATCH, SEED = 2, 2, 1
STEPS = EPOCHS * 30 // BATCH
DATA = ("dialogues/train.jsonl", "dialogues/test.jsonl")
PROBE = {"tuned": "no", "form": "plain", "steps": 0, "dialogues": 2}
RUNS = (("no", "template"), ("no", "plain"), ("all", "template"), ("last", "template"))
PLAN = [
    PROBE,
    *(
        {"tuned": tuned, "form": form, "steps": STEPS * (tuned != "no"), "dialogues": 10}
        for tuned, form in (*RUNS, ("every token", "plain"))
    ),
]


def plain(messages: tuple[Message, ...]) -> str:
    """What Listing 8 of document 1 makes of a conversation."""
    labels = {"user": "User", "assistant": "Assistant"}
    turns = (each for each in messages if each.role in labels)
    return "".join(f"{labels[each.role]}: {each.content}\n" for each in turns)


class Dialogues(Task):
    """The task, with the dialogues as conversations."""

    def __init__(self) -> None:
        super().__init__()
        self.splits = {
            split: [
                Conversation(tuple(Message(**turn) for turn in item.messages), item.id)
                for item in load_dialogues(split)
            ]
            for split in ("train", "test")
        }

    def tokenized(self, conversation: Conversation, tuned: str) -> TokenizedExample:
        """Tokens and labels, of all answers, of the last one, or of every token."""
        if tuned != "every token":
            return tokenize_conversation(conversation, self.tokenizer, answers=tuned)
        text = plain(conversation.messages)
        ids = self.tokenizer(text, add_special_tokens=False).input_ids
        return TokenizedExample(tuple(ids), tuple(ids))

    def prompt(self, messages: tuple[Message, ...], form: str) -> str:
        """The text that the model continues."""
        if form == "plain":
            return plain(messages) + "Assistant:"
        return chat_text(messages, self.tokenizer, generation_prompt=True)

    def converse(self, conversations: list[Conversation]) -> list[list[tuple[str, bool]]]:
        """The model's answers to all user turns, each after its own earlier answers."""
        so_far: list[list[Message]] = [[] for _ in conversations]
        written: list[list[tuple[str, bool]]] = [[] for _ in conversations]
        for turn in range(max(len(each.answers) for each in conversations)):
            open_ones = [at for at, each in enumerate(conversations) if turn < len(each.answers)]
            for at in open_ones:
                messages = conversations[at].messages
                places = [k for k, each in enumerate(messages) if each.role == "assistant"]
                so_far[at] += messages[places[turn - 1] + 1 if turn else 0 : places[turn]]
            prompts = [self.prompt(tuple(so_far[at]), "template") for at in open_ones]
            for at, answer in zip(open_ones, self.write(prompts), strict=True):
                written[at].append(answer)
                so_far[at].append(Message("assistant", answer[0].strip() or "…"))
        return written


def measure(task: Dialogues, key: dict) -> dict:
    """One run: losses on the test dialogues' answers, and the answers that the model writes."""
    if key["tuned"] != "no":
        examples = [task.tokenized(each, key["tuned"]) for each in task.splits["train"]]
        task.tune(examples, BATCH, key["steps"], SEED)
    test = task.splits["test"][: key["dialogues"]]
    prompts = [task.prompt(each.messages[:-1], key["form"]) for each in test]
    result = {"ids": [each.id for each in test], "given": task.write(prompts)}
    if key["form"] == "template":
        for answers in ("all", "last"):
            examples = [
                tokenize_conversation(each, task.tokenizer, answers=answers) for each in test
            ]
            result[f"{answers}_losses"] = task.losses(examples)
        result["own"] = task.converse(test)
    task.restore()
    return result


if __name__ == "__main__":
    settings = {**SETTINGS, "batch": BATCH, "epochs": EPOCHS, "seed": SEED}
    main(__file__, PLAN, Dialogues, measure, probe=PROBE, settings=settings, data=DATA)
