"""Files of tensors and how they become durable: checkpoints, exports, the page cache."""
