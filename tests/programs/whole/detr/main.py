import argparse
import json
from pathlib import Path

import torch
import util.misc as utils
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


def get_args_parser():
    parser = argparse.ArgumentParser('Set transformer detector', add_help=False)
    parser.add_argument('--epochs', default=2, type=int)
    parser.add_argument('--output_dir', default='', help='path where to save, empty for no saving')
    parser.add_argument('--device', default='cuda', help='device to use for training / testing')
    parser.add_argument('--num_workers', default=2, type=int)
    # distributed training parameters
    parser.add_argument('--world_size', default=1, type=int, help='number of distributed processes')
    parser.add_argument('--dist_url', default='env://', help='url used to set up distributed training')
    return parser


def main(args):
    utils.init_distributed_mode(args)
    device = torch.device(args.device)
    model = torch.nn.Linear(4, 1).to(device)
    model_without_ddp = model
    if args.distributed:
        model = torch.nn.parallel.DistributedDataParallel(model)
        model_without_ddp = model.module
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    x = torch.randn(256, 4, generator=torch.Generator().manual_seed(0))
    dataset = TensorDataset(x, x.sum(1, keepdim=True))
    sampler = DistributedSampler(dataset) if args.distributed else None
    loader = DataLoader(dataset, 32, sampler=sampler, num_workers=args.num_workers)
    output_dir = Path(args.output_dir)
    for epoch in range(args.epochs):
        for batch, target in loader:
            loss = torch.nn.functional.mse_loss(model(batch), target)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        log_stats = {'epoch': epoch, 'train_loss': loss.item()}
        if args.output_dir and (not args.distributed or args.rank == 0):
            torch.save({'model': model_without_ddp.state_dict()}, output_dir / 'checkpoint.pth')
            with (output_dir / "log.txt").open("a") as f:
                f.write(json.dumps(log_stats) + "\n")
        print(log_stats)
    print('Training time of world', args.world_size)


if __name__ == '__main__':
    parser = argparse.ArgumentParser('DETR training and evaluation script', parents=[get_args_parser()])
    args = parser.parse_args()
    if args.output_dir:
        Path(args.output_dir).mkdir(parents=True, exist_ok=True)
    main(args)
