"""The machine that trains: device, micro-batches that fit it, inner optimizers."""
