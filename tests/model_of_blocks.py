"""A file with a model of one's own, as `neusight plan --model FILE:FUNCTION` takes it."""

MODEL = """
import torch
from torch import nn

class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.up = nn.LayerNorm(256), nn.Linear(256, 1024)
        self.down = nn.Linear(1024, 256)

    def forward(self, x):
        return x + self.down(torch.relu(self.up(self.norm(x))))

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.tokens = nn.Embedding(1000, 256)
        self.blocks = nn.ModuleList(Block() for _ in range(4))
        self.head = nn.Linear(256, 1000)

    def forward(self, tokens):
        x = self.tokens(tokens)
        for block in self.blocks:
            x = block(x)
        return self.head(x)

def build():
    return Net()
"""
