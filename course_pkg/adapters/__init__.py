"""Parameter-efficient fine-tuning: from LoRA to prefix tuning, in PEFT's file format.

`adapt`, `save` and `load` work for every method.

>>> from course_pkg.adapters import LoRAConfig
>>> LoRAConfig(rank=8, alpha=16).scaling_of()
2.0
"""

from course_pkg.common.lazy import lazy_exports

_EXPORTS = {
    "course_pkg.adapters.accounting": (
        "count_parameters estimate_memory lora_parameters measure_step"
    ),
    "course_pkg.adapters.adalora": "AdaLoRAConfig",
    "course_pkg.adapters.adapter_io": "load_adapter save_adapter",
    "course_pkg.adapters.bottleneck": "BottleneckConfig",
    "course_pkg.adapters.combining": "add_weighted_adapter",
    "course_pkg.adapters.dora": "DoRAConfig",
    "course_pkg.adapters.ia3": "IA3Config",
    "course_pkg.adapters.injection": (
        "disable_adapters inject merge_adapters remove_adapters set_adapter trainable_parameters "
        "unmerge_adapters"
    ),
    "course_pkg.adapters.lora": "LoRAConfig LoRALinear",
    "course_pkg.adapters.methods": "adapt load save",
    "course_pkg.adapters.pissa": "start_from_principal",
    "course_pkg.adapters.prefixes": "PrefixTuningConfig",
    "course_pkg.adapters.prompts": "PromptTuningConfig",
    "course_pkg.adapters.qlora": "Linear4bit merge_quantized quantize_model",
    "course_pkg.adapters.rank_allocator": "RankAllocator",
}
__all__, __getattr__, __dir__ = lazy_exports(__name__, _EXPORTS)
