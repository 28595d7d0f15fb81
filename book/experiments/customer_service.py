"""A kite shop's assistant in five versions: what each answers to the customers' questions.

    python book/experiments/customer_service.py            run what is missing of the record
    python book/experiments/customer_service.py --confirm  after an edit: run one short row again

The systems: "plain", the model as it is; "short", with a prompt of three sentences; "policy", with
the shop's rules as well; "adapter", with the same prompt and an adapter tuned on other topics, two
seeds. While it is tuned, a prompt has only the part of the rules that it needs and the last one,
because all of them would take about three times as long.

"validation": the answers to the validation questions. They choose where the rules stand in the
prompt, by the required facts: in the system message or before the question.
"answers", "typos": the answers to the test questions, without and with typing errors, and whether
each ended by itself. "typos" only for systems that have the rules.
"nats": of each reference answer, with its number of tokens.
"general": short answers that have nothing to do with the shop; they need the weights alone.
"judge": the scores of the model as a judge, for answers that the author had rated before.
"""

from instruction_task import SETTINGS, Task
from record import main

from course_pkg.adapters.injection import merge_adapters
from course_pkg.evaluation.continuation_scores import score_continuations
from course_pkg.evaluation.greedy import generate_greedy
from course_pkg.evaluation.prompt_template import PromptTemplate
from course_pkg.finetuning.conversations import Conversation, Message
from course_pkg.finetuning.formats import chat_text
from course_pkg.finetuning.masking import tokenize_conversation
from course_pkg.lm.load import load
from course_pkg.pages.datasets import first_of_groups, read_records
from course_pkg.pages.experiments import ROOT
from course_pkg.pages.perturbations import add_typos
from course_pkg.studies.evaluation_plan.requirements import check_facts
from course_pkg.studies.judge.geval import JudgeTask, g_eval
from course_pkg.studies.judge.local import LocalJudge

FOLDER = ROOT / "course_pkg/data/evaluation"
SHOP = (
    "You answer customers of Tern Kites, a kite shop. Answer in one or two short sentences. If you "
    "don't know the answer, say so, and give our number, 555-0142."
)
TOKENS = 48  # the most that an answer may have
SHORT_TOKENS = 16
TYPOS = 0.05  # of the letters
STEPS, BATCH = 39, 2  # one epoch
ALL = 256
JUDGE = JudgeTask(
    "You will be given a customer's question and a shop's answer. Rate the answer.",
    "Tone",
    "1 is rude or impossible to understand, 5 is polite and easy to understand. It doesn't matter "
    "whether the answer is true.",
    (1, 2, 3, 4, 5),
)
NAMES = (
    "customer-service.jsonl",
    "customer-service-validation.jsonl",
    "customer-service-tune.jsonl",
    "customer-service-rated.jsonl",
    "customer-service-policy.txt",
    "short-answers.jsonl",
    "short-answers-examples.jsonl",
)
PROBE = {"part": "test", "system": "short", "seed": 0, "items": 3, "place": "system"}
PLACES = ("system", "user")


def plan(rows: list[dict]) -> list[dict]:
    """The validation first; what is tested has the rules where more facts were right."""
    first = [PROBE, *({"part": "validation", "place": place} for place in PLACES)]
    done = {row["place"]: facts(row) for row in rows if row["part"] == "validation"}
    if len(done) < len(PLACES):
        return first
    best = max(PLACES, key=done.__getitem__)  # the first one, if they are equal
    seeds = [("plain", 0), ("short", 0), ("policy", 0), ("adapter", 1), ("adapter", 2)]
    rest = [
        {"part": "test", "system": system, "seed": seed, "items": ALL, "place": best}
        for system, seed in seeds
    ]
    return [*first, *rest, {"part": "judge"}]


def facts(row: dict) -> int:
    """The validation questions whose required facts are all in the answer."""
    items = read_records("customer-service-validation")
    checks = [
        check_facts(text, item["required"])
        for (text, _), item in zip(row["answers"], items, strict=True)
    ]
    return sum(each.has_all_facts for each in checks)


def policy() -> list[str]:
    """The rules of the shop, a line for each subject; the last is for everything else."""
    return (FOLDER / "customer-service-policy.txt").read_text("utf-8").splitlines()


def turns(system: str, question: str, place: str, part: list[str] | None = None) -> list[Message]:
    """The messages that a system sees. place: where the rules stand. part: of the rules; all."""
    if system == "plain":
        return [Message("user", question)]
    rules = ""
    if system != "short":
        rules = "Rules of the shop:\n" + "\n".join(part or policy())
    if place == "user":
        return [Message("system", SHOP), Message("user", f"{rules}\nQuestion: {question}")]
    return [Message("system", f"{SHOP}\n\n{rules}".strip()), Message("user", question)]


def write(task: Task, conversations: list[list[Message]]) -> list[tuple[str, bool]]:
    """What the model answers, and whether it ended by itself."""
    prompts = [chat_text(each, task.tokenizer, generation_prompt=True) for each in conversations]
    found = generate_greedy(
        task.model, task.tokenizer, prompts, max_new_tokens=TOKENS, batch_size=30
    )
    return [(each.text, each.finish == "end") for each in found]


def reference_nats(task: Task, key: dict, items: list[dict]) -> list[list[float]]:
    """The nats and the tokens of each reference answer, its end token left out."""
    sequences, first = [], []
    for item in items:
        answer = Message("assistant", item["answers"][0])
        conversation = Conversation((*turns(key["system"], item["question"], key["place"]), answer))
        example = tokenize_conversation(conversation, task.tokenizer)
        start = next(k for k, label in enumerate(example.labels) if label >= 0)
        sequences.append(example.input_ids[:-1])
        first.append(start)
    found = score_continuations(task.model, sequences, first)
    return [[-each.total, len(each.log_probs)] for each in found]


def general(task: Task, count: int) -> list[str]:
    """Short answers to the first two questions of each group, after two examples."""
    chosen = first_of_groups(read_records("short-answers"))
    examples = [
        {"question": item["question"], "answer": item["answers"][0]}
        for item in read_records("short-answers-examples")[:2]
    ]
    template = PromptTemplate()
    prompts = [template.render(item, examples).text for item in chosen[:count]]
    found = generate_greedy(
        task.model, task.tokenizer, prompts, max_new_tokens=SHORT_TOKENS, stop=["\n"]
    )
    return [each.text for each in found]


def tune(task: Task, key: dict) -> None:
    """One epoch on the tune split; the adapter is then merged."""
    examples = []
    *subjects, otherwise = policy()
    for number, item in enumerate(read_records("customer-service-tune")):
        own = [line for line in subjects if line.lower().startswith(item["topic"])]
        part = [*(own or [subjects[number % len(subjects)]]), otherwise]
        answer = Message("assistant", item["answers"][0])
        asked = turns("adapter", item["question"], key["place"], part)
        conversation = Conversation((*asked, answer), item["id"])
        examples.append(tokenize_conversation(conversation, task.tokenizer))
    task.tune(examples, BATCH, STEPS, key["seed"])
    merge_adapters(task.model)
    task.restore()  # removes the adapter, and keeps what was merged


def measure(task: Task, key: dict) -> dict:
    """One row of the plan."""
    if key["part"] == "judge":
        judge = LocalJudge(task.model, task.tokenizer, reuse_prompt=True)
        rated = read_records("customer-service-rated")
        texts = [{"Question": each["question"], "Answer": each["answer"]} for each in rated]
        return {"scores": [g_eval(judge, JUDGE, each).score for each in texts]}
    if key["part"] == "validation":
        asked = [item["question"] for item in read_records("customer-service-validation")]
        return {"answers": write(task, [turns("policy", each, key["place"]) for each in asked])}
    system = key["system"]
    if system == "adapter":
        tune(task, key)
    items = read_records("customer-service")[: key["items"]]
    asked = [item["question"] for item in items]
    wrong = [add_typos(text, TYPOS, seed=number) for number, text in enumerate(asked)]
    result = {
        "answers": write(task, [turns(system, text, key["place"]) for text in asked]),
        "nats": reference_nats(task, key, items),
    }
    if system in ("policy", "adapter"):
        result["typos"] = write(task, [turns(system, text, key["place"]) for text in wrong])
    if system in ("plain", "adapter"):
        result["general"] = general(task, key["items"])
    if system == "adapter":
        task.model, _ = load(SETTINGS["model"])
    return result


if __name__ == "__main__":
    settings = {**SETTINGS, "most_tokens": TOKENS, "steps": STEPS, "batch": BATCH, "typos": TYPOS}
    settings |= {"prompt": SHOP, "criteria": JUDGE.criteria}
    data = [f"evaluation/{name}" for name in NAMES]
    main(__file__, plan, Task, measure, probe=PROBE, settings=settings, data=data)
