"""Generation: token ids in; tokens, logprobs and version spans out."""
