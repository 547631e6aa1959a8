"""Segmentation of discs by a small U-Net, a dice loss of its own, and a loader with workers."""

import argparse

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset


class Discs(Dataset):
    def __len__(self):
        return 256

    def __getitem__(self, index):
        generator = torch.Generator().manual_seed(index)
        x, y, radius = torch.rand(3, generator=generator) * torch.tensor([12.0, 12.0, 4.0]) + torch.tensor([6, 6, 3])
        rows, columns = torch.meshgrid(torch.arange(24.0), torch.arange(24.0), indexing="ij")
        mask = ((columns - x) ** 2 + (rows - y) ** 2 < radius**2).float()[None]
        image = 0.8 * mask + 0.3 * torch.randn(1, 24, 24, generator=generator)
        return {"image": image, "mask": mask, "path": f"disc{index}.png"}


class UNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.down1 = nn.Sequential(nn.Conv2d(1, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU())
        self.down2 = nn.Sequential(nn.Conv2d(8, 16, 3, stride=2, padding=1), nn.BatchNorm2d(16), nn.ReLU())
        self.up = nn.ConvTranspose2d(16, 8, 2, stride=2)
        self.out = nn.Conv2d(16, 1, 1)

    def forward(self, x):
        skip = self.down1(x)
        return self.out(torch.cat([skip, self.up(self.down2(skip))], dim=1))


def dice_loss(logits, mask):
    probability = logits.sigmoid()
    overlap = (probability * mask).sum((1, 2, 3))
    return 1 - (2 * overlap + 1) / (probability.sum((1, 2, 3)) + mask.sum((1, 2, 3)) + 1)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--workers", type=int, default=2)
    args = parser.parse_args()
    torch.manual_seed(0)
    net = UNet()
    optimizer = torch.optim.AdamW(net.parameters(), lr=args.lr)
    scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=10 * args.lr, total_steps=80)
    loader = DataLoader(Discs(), 32, shuffle=True, num_workers=args.workers)
    for _ in range(10):
        for batch in loader:
            logits = net(batch["image"])
            loss = dice_loss(logits, batch["mask"]).mean()
            loss = loss + F.binary_cross_entropy_with_logits(logits, batch["mask"])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            scheduler.step()


if __name__ == "__main__":
    main()
