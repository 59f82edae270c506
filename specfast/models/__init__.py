"""From a name to logits: configuration, checkpoints, the native decoder."""
