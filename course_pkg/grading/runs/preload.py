"""What the fork servers import and prepare, so that no kernel has to.

A kernel imports some modules only when it starts, such as the debugger that ipykernel always loads:
140 modules. A fork server imports them, and then this module, which compiles the schema of
notebooks.

Chapter: appendix/threat-model.
"""

import nbformat
from nbformat.v4 import new_notebook

MODELS = ("torch", "transformers.generation.utils", "transformers.models.auto.modeling_auto",
          "transformers.models.auto.tokenization_auto", "course_pkg.lm.load",
          "transformers.models.llama.modeling_llama", "course_pkg.lm.tiny")  # fmt: skip
NOTEBOOKS = ("IPython", "ipykernel.kernelapp", "nbclient", "matplotlib_inline.backend_inline",
             "ipykernel.debugger", "IPython.core.debugger", "IPython.core.completerlib",
             "IPython.core.logger", "IPython.core.oinspect", "IPython.extensions.storemagic",
             "tornado.platform.asyncio", "psutil", "faulthandler", "encodings.cp437",
             "encodings.unicode_escape", "encodings.latin_1", "encodings.idna",
             "course_pkg.grading.check", "course_pkg.grading.runs.preload")  # fmt: skip
DEBUGGER = {"PYDEVD_USE_FRAME_EVAL": "NO"}  # what importing the debugger adds to the environment
QUIET_DEBUGGER = {"PYDEVD_DISABLE_FILE_VALIDATION": "1"}  # or its import warns on stderr

nbformat.validate(new_notebook())  # compiles the schema, which takes 30 ms
