"""Write small GPT-2s with random parameters, as transformers saves them, and their logits: random_gpt2.py DIRECTORY."""

import sys
from pathlib import Path

import numpy as np
import torch
from transformers import GPT2Config, GPT2LMHeadModel

directory = Path(sys.argv[1])
torch.manual_seed(0)
config = GPT2Config(vocab_size=101, n_positions=40, n_embd=48, n_layer=3, n_head=4, bos_token_id=0, eos_token_id=0)
model = GPT2LMHeadModel(config).eval()
with torch.no_grad():
    for name, parameter in model.named_parameters():
        parameter.normal_(float("ln_" in name and name.endswith("weight")), 0.05)
tokens = torch.randint(101, (20, 33))


def save(name: str, saved: torch.nn.Module, **options: str) -> None:
    """The folder that a user names, and beside it tokens with what torch says of them."""
    saved.save_pretrained(directory / name, **options)
    with torch.no_grad():
        logits = model.float()(tokens).logits.numpy()
    np.savez(directory / f"{name}.npz", inputs=tokens[:, :-1].numpy(), labels=tokens[:, 1:].numpy(), logits=logits[:, :-1])


save("language-model", model)
save("base-model", model.transformer)
save("sharded", model, max_shard_size="100KB")
save("bfloat16", model.bfloat16())
