"""Checks of the assignment `quantized-inference`: int8 products, outliers, SmoothQuant, GPTQ."""
