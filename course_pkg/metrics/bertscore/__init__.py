"""BERTScore: tokens matched by the cosines of an encoder's vectors.

>>> from course_pkg.metrics.bertscore import bert_score
>>> round(bert_score(["a cat sat"], ["a cat sat"]).f1.item(), 4)
1.0
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
