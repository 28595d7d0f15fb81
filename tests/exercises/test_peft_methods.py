"""`peft-methods`: the right counts are those of models with adapters."""

import math

from transformers import LlamaConfig

from course_pkg.adapters.accounting import count_parameters
from course_pkg.adapters.adalora import AdaLoRAConfig
from course_pkg.adapters.dora import DoRAConfig
from course_pkg.adapters.ia3 import IA3Config
from course_pkg.adapters.lora import LoRAConfig
from course_pkg.adapters.prefixes import cache_shape
from course_pkg.grading.assignments.peft_methods import cases
from course_pkg.grading.check import variant


def test_the_books_prefix_is_that_of_a_llama_with_these_sizes():
    case = variant("peft-methods/by-hand")
    config = LlamaConfig(
        num_hidden_layers=case["layers"],
        hidden_size=case["hidden"],
        num_attention_heads=case["heads"],
        num_key_value_heads=case["kv_heads"],
        intermediate_size=case["ffn"],
    )
    prefix = case["virtual_tokens"] * 2 * math.prod(cache_shape(config))
    assert cases.by_hand_expected(case)["virtual"][1] == prefix


def test_the_counts_are_those_of_models_with_adapters():
    sizes = {"num_hidden_layers": 2, "hidden_size": 12, "intermediate_size": 20, "vocab_size": 16}
    config = LlamaConfig(num_attention_heads=3, num_key_value_heads=1, **sizes)
    targets = ["k_proj", "v_proj", "down_proj"]
    sizes = zip(targets, ((4, 12), (4, 12), (12, 20)), strict=True)
    shapes = {f"layers.{i}.{name}": size for name, size in sizes for i in range(2)}
    adapters = {
        "lora": LoRAConfig(4, target_modules=targets),
        "dora": DoRAConfig(4, target_modules=targets),
        "adalora": AdaLoRAConfig(10, initial_rank=4, target_rank=2, target_modules=targets),
        "ia3": IA3Config(),
    }
    for method, adapter in adapters.items():
        counted = cases.counts_expected({"method": method, "shapes": shapes, "rank": 4})
        assert counted == count_parameters(config, method, adapter).trainable, method
