"""From outputs to predictions: streams of blocks, the mixture, the split of its uncertainty, and novelty."""
