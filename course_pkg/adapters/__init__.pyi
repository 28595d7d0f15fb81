from .accounting import (
    count_parameters as count_parameters,
)
from .accounting import (
    estimate_memory as estimate_memory,
)
from .accounting import (
    lora_parameters as lora_parameters,
)
from .accounting import (
    measure_step as measure_step,
)
from .adalora import AdaLoRAConfig as AdaLoRAConfig
from .adapter_io import load_adapter as load_adapter
from .adapter_io import save_adapter as save_adapter
from .bottleneck import BottleneckConfig as BottleneckConfig
from .combining import add_weighted_adapter as add_weighted_adapter
from .dora import DoRAConfig as DoRAConfig
from .ia3 import IA3Config as IA3Config
from .injection import (
    disable_adapters as disable_adapters,
)
from .injection import (
    inject as inject,
)
from .injection import (
    merge_adapters as merge_adapters,
)
from .injection import (
    remove_adapters as remove_adapters,
)
from .injection import (
    set_adapter as set_adapter,
)
from .injection import (
    trainable_parameters as trainable_parameters,
)
from .injection import (
    unmerge_adapters as unmerge_adapters,
)
from .lora import LoRAConfig as LoRAConfig
from .lora import LoRALinear as LoRALinear
from .methods import adapt as adapt
from .methods import load as load
from .methods import save as save
from .pissa import start_from_principal as start_from_principal
from .prefixes import PrefixTuningConfig as PrefixTuningConfig
from .prompts import PromptTuningConfig as PromptTuningConfig
from .qlora import (
    Linear4bit as Linear4bit,
)
from .qlora import (
    merge_quantized as merge_quantized,
)
from .qlora import (
    quantize_model as quantize_model,
)
from .rank_allocator import RankAllocator as RankAllocator
