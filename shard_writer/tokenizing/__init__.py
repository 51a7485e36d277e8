"""From documents to token ids: exactly those of the `transformers` tokenizer (G9), by the fastest engine that gives them."""
