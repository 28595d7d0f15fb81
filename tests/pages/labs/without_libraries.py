"""What `check` says of every answer to assignments, as JSON, with or without libraries.

    python -m tests.pages.labs.without_libraries ASSIGNMENT… [--blocked]
    python -m tests.pages.labs.without_libraries --needed

The first gives points and reports of the model answers, the wrong answers and an empty cell.
--blocked: without any package but the course's, and without what a browser's Python lacks, such as
sockets and timers. The second tries what `course_pkg.pages.labs` leaves out, and gives what failed.
"""

import json
import signal
import sys
from importlib.abc import MetaPathFinder

# What Python in a browser lacks, although it belongs to the standard library.
LACKING = ("fcntl", "socket", "_socket", "select", "_posixsubprocess", "_multiprocessing")


class Blocked(MetaPathFinder):
    """Refuses every import from a package that is neither the standard library's nor here."""

    def find_spec(self, name, path=None, target=None):
        top = name.split(".")[0]
        known = top in sys.stdlib_module_names or top.startswith("_sysconfigdata")
        if not known and top not in ("course_pkg", "tests"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)


def block() -> None:
    sys.meta_path.insert(0, Blocked())
    for name in LACKING:
        sys.modules[name] = None
    for name in ("setitimer", "SIGALRM", "ITIMER_REAL"):
        delattr(signal, name)


def reports(assignment: str) -> dict:
    """Points and report, as text and HTML, of every answer; and the answers that need a library."""
    from course_pkg.grading.check import check, variant
    from course_pkg.grading.questions.answer_key import answer_key
    from course_pkg.pages.labs.assignments import ASSIGNMENTS, libraries

    key = answer_key(assignment)
    found = {}
    left_out = []
    for name in ASSIGNMENTS[assignment]:
        question = key[name]
        inputs = variant(f"{assignment}/{question.variant}") if question.variant else {}
        answers = {"empty cell": None}
        for wrong in (None, *question.wrong):
            label = wrong.name if wrong else "model answer"
            if libraries(key.source(question, wrong)):
                left_out.append(f"{name}: {label}")
            else:
                answers[label] = key.answer(question, inputs, wrong)
        for label, answer in answers.items():
            score = check(f"{assignment}/{name}", answer)
            found[f"{name}: {label}"] = [float(score), score.report, score._repr_html_()]
    return {"found": found, "left out": left_out}


def needed() -> dict[str, str]:
    """The assignments and questions left out, with the error that they give without libraries."""
    from course_pkg.grading.questions import registry
    from course_pkg.grading.questions.grading_session import GradingSession
    from course_pkg.pages.labs.assignments import ASSIGNMENTS

    def error(call, *arguments) -> str:
        try:
            call(*arguments)
        except Exception as problem:
            return str(problem)
        return ""

    errors = {}
    for name in registry.assignments():
        if name not in ASSIGNMENTS:
            errors[name] = error(GradingSession, name)
            continue
        session = GradingSession(name)
        for question in session.questions:
            if question not in ASSIGNMENTS[name]:
                errors[f"{name}/{question}"] = error(session.cases, question)
    return errors


if __name__ == "__main__":
    if sys.argv[1] == "--needed":
        block()
        print(json.dumps(needed()))
    else:
        if "--blocked" in sys.argv:
            block()
        names = [name for name in sys.argv[1:] if name != "--blocked"]
        print(json.dumps({name: reports(name) for name in names}))
