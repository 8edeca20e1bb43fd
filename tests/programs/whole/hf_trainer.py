from dataclasses import dataclass, field

import torch
from transformers import GPT2Config, GPT2LMHeadModel, HfArgumentParser, Trainer, TrainingArguments


@dataclass
class DataArguments:
    examples: int = field(default=64)


class Letters(torch.utils.data.Dataset):
    def __init__(self, size):
        self.ids = torch.randint(0, 32, (size, 16), generator=torch.Generator().manual_seed(0))

    def __len__(self):
        return len(self.ids)

    def __getitem__(self, index):
        return {"input_ids": self.ids[index], "labels": self.ids[index]}


def main():
    data_args, training_args = HfArgumentParser((DataArguments, TrainingArguments)).parse_args_into_dataclasses()
    model = GPT2LMHeadModel(GPT2Config(vocab_size=32, n_positions=16, n_embd=16, n_layer=1, n_head=2))
    trainer = Trainer(model=model, args=training_args, train_dataset=Letters(data_args.examples))
    result = trainer.train()
    trainer.save_model()
    print(f"process {training_args.process_index} of {training_args.world_size}: {result.metrics['train_loss']:.3f}")


if __name__ == "__main__":
    main()
