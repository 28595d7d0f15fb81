"""Several scenarios times several metrics, for SmolLM2 and four adapters: a small HELM.

    python book/experiments/small_helm.py            run what is missing of the record
    python book/experiments/small_helm.py --confirm  after an edit: run one short row again

The systems: the model as it is; tuned on the navigator's answers; tuned on the course's
instructions; two seeds of each. Every system is asked for everything in the same way:

"choice": the log-probabilities of four options, for the first two questions of each group, without
and with typing errors.
"short": a short answer after two examples, written greedily, without and with typing errors.
"instructions" and "navigator": answers to the held-out prompts, in the model's chat template.
"passages": the nats and the bytes of short prose.
"""

from instruction_task import SETTINGS, Task, conversation
from record import main

from course_pkg.adapters.injection import merge_adapters
from course_pkg.evaluation.continuation_scores import score_continuations
from course_pkg.evaluation.greedy import generate_greedy
from course_pkg.evaluation.multiple_choice import ChoiceQuestion, score_questions
from course_pkg.evaluation.prompt_template import PromptTemplate
from course_pkg.finetuning.formats import chat_prompt
from course_pkg.finetuning.masking import tokenize_conversation, tokenize_example
from course_pkg.lm.load import load
from course_pkg.pages.datasets import first_of_groups, load_examples, load_texts, read_records
from course_pkg.pages.perturbations import add_typos
from course_pkg.studies.instructions.instruction_data import load_instructions

ALL = 256
EXAMPLES = 2
TYPOS = 0.1  # of the letters
SHORT_TOKENS = 16
STEPS, BATCH = 60, 4
DATA = (
    "evaluation/multiple-choice.jsonl",
    "evaluation/short-answers.jsonl",
    "evaluation/short-answers-examples.jsonl",
    "instructions/train.jsonl",
    "instructions/test.jsonl",
    "navigator/train.jsonl",
    "navigator/held-out.jsonl",
    "passages/test.jsonl",
)
PROBE = {"system": "untuned", "seed": 0, "items": 3}
PLAN = [
    PROBE,
    {"system": "untuned", "seed": 0, "items": ALL},
    *(
        {"system": system, "seed": seed, "items": ALL}
        for seed in (1, 2)
        for system in ("navigator", "instructions")
    ),
]


def _asked(items: list[dict], typos: float) -> list[str]:
    """The questions, with typing errors that every system gets alike."""
    return [add_typos(item["question"], typos, seed=number) for number, item in enumerate(items)]


def choice(task: Task, count: int, typos: float) -> list[list[float]]:
    """The log-probabilities of each question's options."""
    items = first_of_groups(read_records("multiple-choice"))[:count]
    template = PromptTemplate()
    questions = []
    for item, asked in zip(items, _asked(items, typos), strict=True):
        prompt = template.render({"question": asked})
        questions.append(ChoiceQuestion(prompt.text, tuple(item["options"]), item["answer"]))
    found = score_questions(task.model, task.tokenizer, questions).questions
    return [[option.log_prob for option in each.options] for each in found]


def short(task: Task, count: int, typos: float) -> list[str]:
    """What the model writes after each question, up to the end of the line."""
    items = read_records("short-answers")[:count]
    examples = [
        {"question": item["question"], "answer": item["answers"][0]}
        for item in read_records("short-answers-examples")[:EXAMPLES]
    ]
    template = PromptTemplate()
    asked = _asked(items, typos)
    prompts = [template.render({"question": question}, examples).text for question in asked]
    found = generate_greedy(
        task.model, task.tokenizer, prompts, max_new_tokens=SHORT_TOKENS, stop=["\n"]
    )
    return [each.text for each in found]


def passages(task: Task, count: int) -> list[list[float]]:
    """The nats and the bytes of each passage, after the end-of-text token."""
    texts = load_texts()[:count]
    start = task.tokenizer.convert_tokens_to_ids("<|endoftext|>")
    sequences = [[start, *task.tokenizer(text).input_ids] for text in texts]
    found = score_continuations(task.model, sequences, [1] * len(texts))
    return [[-s.total, len(text.encode())] for s, text in zip(found, texts, strict=True)]


def measure(task: Task, key: dict) -> dict:
    """Everything about one system."""
    if key["system"] != "untuned":
        if key["system"] == "navigator":
            examples = [
                tokenize_example(e.prompt, e.response, task.tokenizer)
                for e in load_examples(split="train")
            ]
        else:
            texts = [conversation(item) for item in load_instructions("train")]
            examples = [tokenize_conversation(text, task.tokenizer) for text in texts]
        task.tune(examples, BATCH, STEPS, key["seed"])
        merge_adapters(task.model)
        task.restore()  # removes the adapter, and keeps what was merged
    count = key["items"]
    instructions = [item.user_turn for item in load_instructions("test")][:count]
    navigator = [item.prompt for item in load_examples(split="held-out")][:count]
    written = {
        name: task.write([chat_prompt(prompt, task.tokenizer) for prompt in prompts])
        for name, prompts in (("instructions", instructions), ("navigator", navigator))
    }
    result = {
        "choice": {str(typos): choice(task, count, typos) for typos in (0.0, TYPOS)},
        "short": {str(typos): short(task, count, typos) for typos in (0.0, TYPOS)},
        "passages": passages(task, count),
        **written,
    }
    if key["system"] != "untuned":
        task.model, _ = load(SETTINGS["model"])
    return result


if __name__ == "__main__":
    settings = {**SETTINGS, "steps": STEPS, "batch": BATCH, "typos": TYPOS, "examples": EXAMPLES}
    main(__file__, PLAN, Task, measure, probe=PROBE, settings=settings, data=DATA)
