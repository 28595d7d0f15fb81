"""What tests of the engine share: a decoder that reads the whole text, and changed logits."""

import dataclasses

import torch

from course_pkg.lm.decoder import Decoder
from course_pkg.lm.load import load


def random_decoder(*windows):
    """A decoder of the tiny model's sizes, with large weights; windows of its two layers."""
    config = Decoder.from_transformers(load("tiny").model).config
    model = Decoder(dataclasses.replace(config, windows=windows or (None, None)))
    generator = torch.Generator().manual_seed(0)
    for parameter in model.requires_grad_(False).parameters():
        if parameter.dim() == 2:
            parameter.normal_(std=0.25, generator=generator)
    return model


def change_logits(engine, change):
    """Call change(rows, logits), with each sequence's rows, in every later step."""
    run = engine.runner.run

    def changed(step, manager):
        rows, logits = run(step, manager)
        logits = logits.clone()
        change(rows, logits)
        return rows, logits

    engine.runner.run = changed
