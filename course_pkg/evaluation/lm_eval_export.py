"""A task in the format of lm-evaluation-harness: its items as JSON lines, and a YAML file.

Each line has the whole prompt, with the examples, so that both programs ask word for word the same:

    multiple choice    acc is our "sum", acc_norm "character", acc_bytes "byte"
    generation         a filter with the rule's pattern, and exact_match under the normalization

lm-eval reads the folder with `lm_eval run --include_path FOLDER --tasks NAME`. What its format can't
say is an error: a chat, which lm-eval writes with `--apply_chat_template`; more than one rule; a
normalization other than "none" and "strip". Verified with lm-eval 0.4.13.
Source: lm-eval's task guide. Chapter: evaluation/likelihood-and-generation.
"""

import json
from pathlib import Path
from typing import Any

from course_pkg.evaluation.answer_extraction import RULES
from course_pkg.evaluation.run_errors import TaskError
from course_pkg.evaluation.samples import failed_sample, make_requests
from course_pkg.evaluation.task import CHOICE, Task
from course_pkg.files import write_atomically
