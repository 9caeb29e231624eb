"""The network of the speech task that 1-bit SGD was published with; its recordings are not public.

F. Seide et al., Interspeech 2014: 440 inputs, seven hidden layers of 2,048, 9,304 outputs,
45,145,176 parameters. Hidden units are tanh here, where the paper's are sigmoids: they train
without layer-wise pre-training. Rectified units do too, but their loss jumps about at the default
learning rate of 0.1, and then a rounding error decides it after 20 steps.
"""

from __future__ import annotations

from torch import nn

from .spec import ModelSpec

HIDDEN_LAYERS = 7
WIDTH = 2048


def _make(classes: int, channels: int) -> nn.Module:
    layers: list[nn.Module] = []
    inputs = channels
    for _ in range(HIDDEN_LAYERS):
        hidden = nn.Linear(inputs, WIDTH)
        nn.init.xavier_uniform_(hidden.weight)
        nn.init.zeros_(hidden.bias)
        layers += [hidden, nn.Tanh()]
        inputs = WIDTH
    output = nn.Linear(inputs, classes)
    nn.init.normal_(output.weight, std=0.01)
    nn.init.zeros_(output.bias)
    return nn.Sequential(*layers, output)


speechdnn = ModelSpec(make=_make, kind="vectors")
