"""Judges for tests: they answer as told, and record what they are asked."""

from course_pkg.studies.judge.geval import JudgeTask

TASK = JudgeTask("Rate an answer.", "Clarity", "1 is confusing.")


class RuleJudge:
    """A judge that follows rules: from a prompt to probabilities, and to written answers.

    rule: probabilities of options, or a function from the prompt to them; None if the judge gives
    no probabilities. writes: the answers, drawn in turn, or a function of the prompt.
    """

    def __init__(self, rule=None, writes=()):
        self.rule = rule
        self.writes = writes
        self.asked = []

    def option_probabilities(self, prompt, start, options):
        self.asked.append((prompt, start, tuple(options)))
        found = self.rule(prompt) if callable(self.rule) else self.rule
        return None if found is None else {option: found.get(option, 0.0) for option in options}

    def write(self, prompt, start="", **settings):
        self.asked.append((prompt, start, settings))
        return [self.writes[i % len(self.writes)] for i in range(settings["n"])]
