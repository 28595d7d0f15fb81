"""Parameter-efficient fine-tuning: from LoRA to prefix tuning, in PEFT's file format.

`adapt`, `save` and `load` work for every method.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
