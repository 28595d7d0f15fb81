"""Adapters that are still in a model, as the names of its tensors show them.

The decoder computes with plain weights. A model with an adapter has more tensors than that, under
names that depend on the library: `q_proj.base.weight` and `q_proj.lora_A.default` in
course_pkg.adapters, `q_proj.base_layer.weight` in PEFT, `base_model.` before all of a PeftModel's.
Chapter: serving/kv-cache.
"""

from collections.abc import Collection, Iterable

from course_pkg.lm.errors import ModelError

PEFT_MODEL = "base_model.model."  # before all names of a PeftModel
# What stands in a tensor's name between a module and the module's own weights.
OURS, PEFT_LAYER, PEFT_SAVED = "base", "base_layer", "original_module"
# What a wrapped module has if its adapter is LoRA, which the engine takes beside the model.
LORA_PARTS = {OURS, PEFT_LAYER, "lora_A", "lora_B"}
VIRTUAL_TOKENS = ("base.", "prompt_encoder.")  # how names begin: course_pkg.adapters, PEFT


def refuse_adapters(names: Iterable[str], *, tied: bool) -> None:
    """Raise ModelError if these tensors' names are those of a model with an unmerged adapter.

    tied: the output matrix is the embedding matrix. The message names a module and says how to
    merge the adapter, or why that is not possible.

    >>> refuse_adapters(["model.layers.0.self_attn.q_proj.weight"], tied=True)
    >>> try:
    ...     refuse_adapters(["base_model.model.model.norm.original_module.weight"], tied=True)
    ... except ModelError as error:
    ...     print(str(error).partition(";")[0])
    the model has an unmerged adapter in model.norm: call merge_and_unload() of the PeftModel, and
    give the model that it returns
    """
    names = list(names)
    if any(name.startswith(VIRTUAL_TOKENS) for name in names):
        raise ModelError(
            "the model has a trained prompt or prefix, which can't be merged: "
            "use the model's own generate"
        )
    wrapped = _wrapped_modules(names)
    peft_model = any(name.startswith(PEFT_MODEL) for name in names)
    if not wrapped and not peft_model:
        return
    where = _listed(list(wrapped)) if wrapped else "a PeftModel"
    found = f"the model has an unmerged adapter in {where}: "
    shared = [name for name in wrapped if name.endswith(("lm_head", "embed_tokens"))]
    if tied and any(wrapped[name] == PEFT_LAYER for name in shared):
        raise ModelError(
            f"{found}train it without {' and '.join(shared)} in target_modules; lm_head and "
            "embed_tokens are one weight, and PEFT's merge_and_unload would change both"
        )
    if OURS in wrapped.values():
        advice = "call merge_adapters(model) and remove_adapters(model) of "
        advice += "course_pkg.adapters.injection"
        if tied and shared:
            advice += "; set model.config.tie_word_embeddings to False, because lm_head and "
            advice += "embed_tokens then differ"
    else:
        advice = "call merge_and_unload() of the PeftModel, and give the model that it returns"
    if wrapped and not shared and _parts_below(names, wrapped) <= LORA_PARTS:
        advice += "; or save the adapter, and give the engine the model without it and "
        advice += 'adapters={"name": folder}'
    raise ModelError(found + advice)


def _wrapped_modules(names: Iterable[str]) -> dict[str, str]:
    """The modules that an adapter has wrapped, each with the part of the name that shows it."""
    wrapped = {}
    for name in names:
        parts = name.removeprefix(PEFT_MODEL).split(".")
        for part in (OURS, PEFT_LAYER, PEFT_SAVED):
            if part in parts:
                wrapped[".".join(parts[: parts.index(part)])] = part
    return wrapped


def _parts_below(names: Iterable[str], wrapped: Collection[str]) -> set[str]:
    """What follows a wrapped module in the tensors' names: `lora_A`, `ia3_l`, `copies`, …"""
    own = [name.removeprefix(PEFT_MODEL) for name in names]
    return {
        name.removeprefix(f"{module}.").partition(".")[0]
        for module in wrapped
        for name in own
        if name.startswith(f"{module}.")
    }


def _listed(modules: list[str]) -> str:
    others = len(modules) - 1
    if not others:
        return modules[0]
    return f"{modules[0]} and {others} more module{'s' if others > 1 else ''}"
