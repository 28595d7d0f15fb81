from .accounting import (
    count_parameters as count_parameters,
    estimate_memory as estimate_memory,
    lora_parameters as lora_parameters,
    measure_step as measure_step,
)
from .adalora import AdaLoRAConfig as AdaLoRAConfig
from .adapter_io import load_adapter as load_adapter, save_adapter as save_adapter
from .bottleneck import BottleneckConfig as BottleneckConfig
from .combining import add_weighted_adapter as add_weighted_adapter
from .dora import DoRAConfig as DoRAConfig
from .ia3 import IA3Config as IA3Config
from .injection import (
    disable_adapters as disable_adapters,
    inject as inject,
    merge_adapters as merge_adapters,
    remove_adapters as remove_adapters,
    set_adapter as set_adapter,
    trainable_parameters as trainable_parameters,
    unmerge_adapters as unmerge_adapters,
)
from .lora import LoRAConfig as LoRAConfig, LoRALinear as LoRALinear
from .methods import adapt as adapt, load as load, save as save
from .pissa import start_from_principal as start_from_principal
from .prefixes import PrefixTuningConfig as PrefixTuningConfig
from .prompts import PromptTuningConfig as PromptTuningConfig
from .qlora import (
    Linear4bit as Linear4bit,
    merge_quantized as merge_quantized,
    quantize_model as quantize_model,
)
from .rank_allocator import RankAllocator as RankAllocator
