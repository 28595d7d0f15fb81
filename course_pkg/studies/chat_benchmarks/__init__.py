"""Page: evaluation/chat-benchmarks."""
