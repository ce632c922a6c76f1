"""Train a residual network on images, with warm-up, accumulation, checkpoints and resume.

    farandole run -n 2 python examples/torch/imagenet.py --checkpoints folder

Run the command again to continue after the last epoch that has a checkpoint. The images are random,
so the script needs no download. For ImageNet, return torchvision's ImageFolder in dataset().
"""

from __future__ import annotations

import argparse
import math
from pathlib import Path

import torch
import torch.nn.functional as F  # noqa: N812
from fashion_mnist import check_equal
from torch import nn
from torch.utils.data import DataLoader, Dataset, DistributedSampler

import farandole.torch as hvd

CLASSES = 10


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Train a residual network.")
    parser.add_argument("--checkpoints", type=Path, required=True, help="the folder")
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--warmup-epochs", type=float, default=1)
    parser.add_argument("--images", type=int, default=256)
    parser.add_argument("--image-size", type=int, default=32)
    parser.add_argument("--batch-size", type=int, default=8, help="images per worker and pass")
    parser.add_argument("--passes-per-step", type=int, default=2, help="passes per optimizer step")
    parser.add_argument("--lr", type=float, default=0.01, help="the rate for one worker and pass")
    parser.add_argument("--fp16-allreduce", action="store_true", help="send gradients as float16")
    parser.add_argument("--use-adasum", action="store_true", help="combine by Adasum")
    return parser.parse_args()


class RandomImages(Dataset[tuple[torch.Tensor, int]]):
    """Random images. The mean of an image depends on its class, so the network can learn the
    classes."""

    def __init__(self, count: int, size: int, seed: int) -> None:
        self.count, self.size, self.seed = count, size, seed

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        generator = torch.Generator().manual_seed(self.seed * self.count + index)
        image_class = index % CLASSES
        image = torch.randn(3, self.size, self.size, generator=generator)
        image[image_class % 3] += 1.0 + image_class // 3
        return image, image_class


def dataset(options: argparse.Namespace, part: str) -> Dataset[tuple[torch.Tensor, int]]:
    count = options.images if part == "train" else options.images // 4
    return RandomImages(count, options.image_size, seed=1 if part == "train" else 2)


class Block(nn.Module):
    """Two convolutions whose input is added to their output."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.first_norm = nn.BatchNorm2d(channels)
        self.second = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.second_norm = nn.BatchNorm2d(channels)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        inner = F.relu(self.first_norm(self.first(images)))
        return F.relu(images + self.second_norm(self.second(inner)))


def network() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 16, 3, stride=2, padding=1),
        Block(16),
        nn.Conv2d(16, 32, 3, stride=2, padding=1),
        Block(32),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(32, CLASSES),
    )


def learning_rate_factor(epoch: float, options: argparse.Namespace) -> float:
    """Return the factor of the learning rate: it rises from 1 to the number of workers times the
    number of passes per step, then falls to zero."""
    largest: int = hvd.size() * options.passes_per_step
    if options.use_adasum:
        largest = options.passes_per_step  # Adasum needs no larger rate for more workers
    if epoch < options.warmup_epochs:
        return 1 + (largest - 1) * epoch / float(options.warmup_epochs)
    progress: float = (epoch - options.warmup_epochs) / max(
        options.epochs - options.warmup_epochs, 1
    )
    return largest * (1 + math.cos(math.pi * progress)) / 2


class Training:
    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        torch.manual_seed(1)
        self.model = network()
        optimizer = torch.optim.SGD(
            self.model.parameters(), lr=options.lr, momentum=0.9, weight_decay=5e-5
        )
        self.optimizer = hvd.DistributedOptimizer(
            optimizer,
            named_parameters=self.model.named_parameters(),
            compression=hvd.Compression.fp16 if options.fp16_allreduce else hvd.Compression.none,
            backward_passes_per_step=options.passes_per_step,
            op=hvd.Adasum if options.use_adasum else hvd.Average,
        )

    def checkpoint(self, epoch: int) -> Path:
        return Path(self.options.checkpoints, f"epoch-{epoch}.pt")

    def resume(self) -> int:
        """Load the last checkpoint and return the number of epochs that are done."""
        done = 0
        if hvd.rank() == 0:  # only rank 0 needs access to the files
            epochs = [n for n in range(1, 1 + self.options.epochs) if self.checkpoint(n).exists()]
            done = max(epochs, default=0)
            if done > 0:
                saved = torch.load(self.checkpoint(done), weights_only=True)
                self.model.load_state_dict(saved["model"])
                self.optimizer.load_state_dict(saved["optimizer"])
        done = hvd.broadcast_object(done, root_rank=0)
        hvd.broadcast_parameters(self.model.state_dict(), root_rank=0)
        hvd.broadcast_optimizer_state(self.optimizer, root_rank=0)
        return done

    def save(self, epoch: int) -> None:
        if hvd.rank() == 0:
            self.options.checkpoints.mkdir(parents=True, exist_ok=True)
            content = {
                "model": self.model.state_dict(),
                "optimizer": self.optimizer.state_dict(),
            }
            torch.save(content, self.checkpoint(epoch))

    def train_epoch(self, epoch: int) -> float:
        """Train one epoch, counted from 0, and return the mean loss of all workers."""
        data = dataset(self.options, "train")
        sampler: DistributedSampler[int] = DistributedSampler(
            data, hvd.size(), hvd.rank(), drop_last=True
        )
        sampler.set_epoch(epoch)
        batches = DataLoader(data, self.options.batch_size, sampler=sampler, drop_last=True)
        passes = self.options.passes_per_step
        steps = len(batches) // passes
        self.model.train()
        total = torch.zeros(())
        for number, (images, classes) in enumerate(batches):
            step, pass_in_step = divmod(number, passes)
            if step == steps:
                break  # the remaining passes are too few for a step
            if pass_in_step == 0:
                self.optimizer.zero_grad()
            loss = F.cross_entropy(self.model(images), classes)
            (loss / passes).backward()
            total += loss.detach()
            if pass_in_step == passes - 1:
                factor = learning_rate_factor(epoch + step / steps, self.options)
                for group in self.optimizer.param_groups:
                    group["lr"] = self.options.lr * factor
                self.optimizer.step()
        return hvd.allreduce(total / (steps * passes), name="loss").item()

    @torch.no_grad()
    def accuracy(self) -> float:
        """Return the accuracy over the test images. Each worker evaluates a part of them."""
        data = dataset(self.options, "test")
        sampler: DistributedSampler[int] = DistributedSampler(
            data, hvd.size(), hvd.rank(), shuffle=False
        )
        self.model.eval()
        counts = torch.zeros(2)
        for images, classes in DataLoader(data, self.options.batch_size, sampler=sampler):
            counts += torch.tensor(
                [(self.model(images).argmax(1) == classes).sum().item(), len(classes)]
            )
        correct, images_seen = hvd.allreduce(counts, op=hvd.Sum, name="accuracy").tolist()
        return float(correct / images_seen)


def average_statistics(model: nn.Module) -> None:
    """Average the running statistics of batch normalization, so that a checkpoint has those of all
    ranks."""
    statistics = [buffer for buffer in model.buffers() if buffer.is_floating_point()]
    hvd.grouped_allreduce_(statistics, name="statistics")


def main() -> None:
    options = parse_arguments()
    hvd.init()
    training = Training(options)
    done = training.resume()
    if hvd.rank() == 0:
        print(f"{done} epochs are done", flush=True)
    for epoch in range(done, options.epochs):
        loss = training.train_epoch(epoch)
        average_statistics(training.model)
        training.save(epoch + 1)
        accuracy = training.accuracy()
        if hvd.rank() == 0:
            print(f"epoch {epoch + 1}: loss {loss:.4f}, accuracy {accuracy:.4f}", flush=True)
    check_equal(training.model)


if __name__ == "__main__":
    main()
