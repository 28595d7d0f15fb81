"""A calculator's steady state against parameters of real models, and against simulations."""

import math

import numpy as np
import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM, Qwen2Config, Qwen2ForCausalLM

from course_pkg.lm.decoder_config import DecoderConfig
from course_pkg.studies.deployment_plan.capacity import (
    Accelerator,
    ModelSize,
    Traffic,
    capacity,
    load_at,
    plan,
    roofline,
)
from course_pkg.studies.scheduling.iteration_cost import CostModel
from course_pkg.studies.scheduling.policies import ContinuousBatching
from course_pkg.studies.scheduling.simulation import simulate, summarize
from course_pkg.studies.scheduling.workload import poisson, requests
from tests.refusals import require_refusals
from tests.tables import each_row

COST = CostModel(base=0.02, prompt=1e-4, sequences=1e-3, context=2e-7)
ONE = Traffic.of(1.0, 90, 20)
CHIP = Accelerator("chip", memory=80e9, bandwidth=3.35e12, flops=989e12, price=3.0)
SMALL = {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 3, "vocab_size": 100}
SMALL |= {"num_attention_heads": 4, "num_key_value_heads": 2}


def _llama(*sizes, tied=False):
    """sizes: in the order of SMALL."""
    return LlamaConfig(**dict(zip(SMALL, sizes, strict=True)), tie_word_embeddings=tied)


CONFIGS = {
    "SmolLM2-135M": _llama(576, 1536, 30, 49152, 9, 3, tied=True),
    "Llama-3-8B": _llama(4096, 14336, 32, 128256, 32, 8),
    "Llama-2-70B": _llama(8192, 28672, 80, 32000, 64, 8),
    "biases": LlamaConfig(**SMALL, attention_bias=True, mlp_bias=True),
    "Qwen2": Qwen2Config(**SMALL, tie_word_embeddings=True),
}


def _size(name, **bits):
    return ModelSize.of(DecoderConfig.from_dict(CONFIGS[name].to_dict()), **bits)


@each_row("name", CONFIGS)
def test_parameters_are_those_of_the_model(name):
    config = CONFIGS[name]
    with torch.device("meta"):
        model = (Qwen2ForCausalLM if config.model_type == "qwen2" else LlamaForCausalLM)(config)
    size = _size(name)
    assert size.parameters == sum(each.numel() for each in model.parameters())
    matrices = sum(each.numel() for each in model.parameters() if each.ndim == 2)
    looked_up = 0 if config.tie_word_embeddings else model.get_input_embeddings().weight.numel()
    assert size.matrices == matrices - looked_up
    assert size.weight_bytes == 2 * size.parameters


def test_pieces_shares_and_bits_scale_the_roofline():
    size = _size("Llama-3-8B")
    whole = roofline(size, CHIP)
    four = roofline(size, CHIP, pieces=4, bandwidth_share=0.5, compute_share=0.25, fixed=0.001)
    assert four.base == pytest.approx(whole.base / 2 + 0.001)
    assert four.context == pytest.approx(whole.context / 2)
    assert (four.prompt, four.pairs) == pytest.approx((whole.prompt, whole.pairs))
    assert whole.base == pytest.approx(size.weight_bytes / 3.35e12)
    size = _size("Llama-3-8B", weight_bits=4.5, cache_bits=8)
    assert size.weight_bytes == size.matrices * 4.5 / 8 + size.others * 2
    assert size.cache_bytes_per_token == 2 * 32 * 8 * 128  # 64 KiB


@each_row("rate", [2.0, 4.0])
def test_a_simulation_runs_as_many_requests_as_the_formula_says(rate):
    draw = np.random.default_rng(0)
    number = 3000
    prompts = draw.integers(50, 800, number)
    answers = draw.geometric(1 / 80, number)
    arrivals = poisson(rate, number, draw)
    traffic = Traffic.of(number / arrivals[-1], prompts.tolist(), answers.tolist())
    load = load_at(traffic.rate, traffic, COST)
    result = simulate(requests(arrivals, prompts, answers), ContinuousBatching(10**6), COST)
    assert result.busy / result.iterations == pytest.approx(load.iteration_seconds, rel=0.03)
    assert answers.sum() / result.iterations == pytest.approx(load.running, rel=0.04)


def test_each_limit_is_reached_at_its_rate():
    traffic = Traffic.of(1.0, [100, 900], [40, 160])
    found = capacity(traffic, COST, cache_tokens=20_000, seconds_per_token=0.05)
    assert found.rate == min(found.by_limit.values()) == found.by_limit[found.limit]
    at = {limit: load_at(rate, traffic, COST) for limit, rate in found.by_limit.items()}
    assert at["cache"].cache_tokens == pytest.approx(20_000)
    assert at["time per token"].iteration_seconds == pytest.approx(0.05)
    assert at["work"].work_share == pytest.approx(1.0)
    assert load_at(1.01 * found.by_limit["work"], traffic, COST).running == math.inf
    wider = capacity(traffic, COST, cache_tokens=40_000, seconds_per_token=0.05)
    assert wider.by_limit["cache"] > found.by_limit["cache"]


@pytest.mark.parametrize(("share", "stable"), [(0.85, True), (1.15, False)])
def test_beyond_its_capacity_a_simulated_server_falls_behind(share, stable):
    draw = np.random.default_rng(1)
    traffic = Traffic.of(1.0, 300, 60)
    found = capacity(traffic, COST, most_running=16)
    number = 2500
    arrivals = poisson(share * found.rate, number, draw)
    result = simulate(
        requests(arrivals, [300] * number, [60] * number), ContinuousBatching(16), COST
    )
    waited = result.first_token - result.arrival
    early = waited[number // 5 : 2 * number // 5].mean()
    late = waited[-number // 5 :].mean()
    assert (late < 3 * early) == stable
    assert summarize(result).requests <= found.rate * 1.03


def test_requests_without_work_are_limited_by_the_cache_alone():
    found = capacity(ONE, CostModel(base=0.02), cache_tokens=1000)
    assert found.rate == found.by_limit["cache"] == pytest.approx(1000 / 100 / (20 * 0.02))
    assert found.by_limit["work"] == math.inf


def test_lengths_that_vary_hold_more_of_the_cache_than_their_mean():
    equal = Traffic.of(1.0, [100, 100], [50, 50])
    varied = Traffic.of(1.0, [100, 100], [10, 90])
    assert equal.tokens_per_running_request == 125
    assert varied.tokens_per_running_request == pytest.approx((10 * 105 + 90 * 145) / 100)


def test_a_plan_has_the_fewest_replicas():
    traffic = Traffic.of(30.0, 500, 100)
    limit = capacity(traffic, COST, cache_tokens=100_000)
    found = plan(traffic, COST, limit, CHIP, pieces=2, most_used=0.7)
    assert 30 / found.replicas <= 0.7 * limit.rate < 30 / (found.replicas - 1)
    assert found.accelerators == 2 * found.replicas
    price_per_hour = found.accelerators * 3.0
    assert found.price_per_million == pytest.approx(price_per_hour / (30 * 100 * 3.6e-3))
    exact = plan(Traffic.of(1.4 * limit.rate, 500, 100), COST, limit, CHIP, most_used=0.7)
    assert exact.replicas == 2  # not 3 by rounding


def test_bad_input_is_explained():
    require_refusals(
        (lambda: Traffic.of(0, 10, 10), "rate must be above 0"),
        (lambda: Traffic.of(1.0, [10, 20], [5]), "2 prompts and 1 answers: give equally many"),
        (lambda: Traffic.of(1.0, [], []), "at least one"),
        (lambda: Traffic.of(1.0, [10], [0]), "answers must be an integer of at least 1"),
        (lambda: Accelerator("chip", 1e9, math.nan, 1e12, 1.0), "bandwidth must be above 0"),
        (lambda: capacity(ONE, COST, cache_tokens=100), "longest request has 110"),
        (lambda: capacity(ONE, COST, seconds_per_token=0.01), "longer than the"),
        (lambda: capacity(ONE, COST, most_running=0), "most_running must be"),
        errors=(TypeError, ValueError),
    )
