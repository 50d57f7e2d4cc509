"""Generation of tokens by a packaged language model, without transformers: its methods are `start` and `decode`."""
