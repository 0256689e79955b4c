"""The multi-layer perceptrons every model is made of."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class MLP(nn.Module):
    """Linear layers with ReLU between them; ``layer_norm`` adds a LayerNorm after each ReLU.

    The order Linear, ReLU, LayerNorm is ReBRAC's (arXiv:2305.09836), whose ablation shows what it is worth.
    """

    def __init__(self, input_dim: int, hidden_sizes: Sequence[int], output_dim: int, *, layer_norm: bool = False) -> None:
        super().__init__()
        sizes = [input_dim, *hidden_sizes, output_dim]
        self.layers = nn.ModuleList(nn.Linear(fan_in, fan_out) for fan_in, fan_out in pairwise(sizes))
        self.norms = nn.ModuleList(nn.LayerNorm(size) for size in hidden_sizes) if layer_norm else None

    def forward(self, x: Tensor) -> Tensor:
        """``(batch, input_dim) -> (batch, output_dim)``."""
        last = len(self.layers) - 1
        for index, layer in enumerate(self.layers):
            x = F.linear(x, layer.weight, layer.bias)  # type: ignore[arg-type]
            if index < last:
                x = torch.relu_(x)  # in place: a linear layer's backward does not need its output
                if self.norms is not None:
                    x = self.norms[index](x)
        return x


class Critic(nn.Module):
    """A scalar action value Q(s, a)."""

    def __init__(self, obs_dim: int, action_dim: int, hidden_sizes: Sequence[int], *, layer_norm: bool = False) -> None:
        super().__init__()
        self.net = MLP(obs_dim + action_dim, hidden_sizes, 1, layer_norm=layer_norm)

    def forward(self, obs_actions: Tensor) -> Tensor:
        """``(batch, obs_dim + action_dim) -> (batch,)``."""
        values: Tensor = self.net(obs_actions)
        return values.squeeze(-1)


class TwinCritics(nn.Module):
    """Two independent critics read together. Separate networks measure faster than batched ones for a pair."""

    def __init__(self, obs_dim: int, action_dim: int, hidden_sizes: Sequence[int], *, layer_norm: bool = False) -> None:
        super().__init__()
        self.q1 = Critic(obs_dim, action_dim, hidden_sizes, layer_norm=layer_norm)
        self.q2 = Critic(obs_dim, action_dim, hidden_sizes, layer_norm=layer_norm)

    def forward(self, obs: Tensor, actions: Tensor) -> tuple[Tensor, Tensor]:
        """Both values, each ``(batch,)``."""
        obs_actions = torch.cat((obs, actions), dim=-1)
        return self.q1(obs_actions), self.q2(obs_actions)


class DeterministicActor(nn.Module):
    """a = tanh(net(s))."""

    def __init__(self, obs_dim: int, action_dim: int, hidden_sizes: Sequence[int]) -> None:
        super().__init__()
        self.net = MLP(obs_dim, hidden_sizes, action_dim)

    def forward(self, obs: Tensor) -> Tensor:
        """``(batch, obs_dim) -> (batch, action_dim)`` in [-1, 1]."""
        return torch.tanh(self.net(obs))


class EnsembleMLP(nn.Module):
    """Several MLPs of one shape: one batched matrix product per layer, or one member after another.

    The latter is a tenth faster on a single thread once the activations of all members together are larger than its cache;
    several threads share the members of a batched product.
    """

    CACHED_ENTRIES = 2**18  # 1 MiB of an activation

    def __init__(
        self, num_members: int, input_dim: int, hidden_sizes: Sequence[int], output_dim: int, *, layer_norm: bool = False
    ) -> None:
        super().__init__()
        self.num_members, self.widest = num_members, max((*hidden_sizes, output_dim))
        sizes = list(pairwise([input_dim, *hidden_sizes, output_dim]))
        self.weights = nn.ParameterList(nn.Parameter(torch.empty(num_members, fan_in, fan_out)) for fan_in, fan_out in sizes)
        self.biases = nn.ParameterList(nn.Parameter(torch.empty(num_members, 1, fan_out)) for _, fan_out in sizes)
        for weight, bias, (fan_in, _) in zip(self.weights, self.biases, sizes, strict=True):
            nn.init.uniform_(weight, -(fan_in**-0.5), fan_in**-0.5)  # as nn.Linear does, each member for itself
            nn.init.uniform_(bias, -(fan_in**-0.5), fan_in**-0.5)
        norms = hidden_sizes if layer_norm else ()
        self.norm_scales = nn.ParameterList(nn.Parameter(torch.ones(num_members, 1, size)) for size in norms)
        self.norm_shifts = nn.ParameterList(nn.Parameter(torch.zeros(num_members, 1, size)) for size in norms)

    def forward(self, x: Tensor, members: Tensor | None = None) -> Tensor:
        """``(batch, input_dim) -> (members, batch, output_dim)``; ``members`` selects some, and only those are computed."""
        parts = [list(part) for part in (self.weights, self.biases, self.norm_scales, self.norm_shifts)]
        count = self.num_members if members is None else len(members)
        if x.device.type == "cpu" and torch.get_num_threads() == 1 and count * len(x) * self.widest > self.CACHED_ENTRIES:
            apart = [[stacked.unbind() for stacked in part] for part in parts]
            chosen = range(count) if members is None else members.tolist()
            return torch.stack([_through(x, *([each[member] for each in part] for part in apart)) for member in chosen])
        if members is not None:
            parts = [[stacked.index_select(0, members) for stacked in part] for part in parts]
        return _through(x.expand(count, *x.shape), *parts)


def _through(
    x: Tensor, weights: Sequence[Tensor], biases: Sequence[Tensor], scales: Sequence[Tensor], shifts: Sequence[Tensor]
) -> Tensor:
    """The layers of one member of an ensemble, or of several: then ``x`` and all tensors have one more dimension."""
    affine = torch.addmm if x.ndim == 2 else torch.baddbmm
    last = len(weights) - 1
    for index, (weight, bias) in enumerate(zip(weights, biases, strict=True)):
        x = affine(bias, x, weight)
        if index < last:
            x = torch.relu_(x)
            if scales:
                x = F.layer_norm(x, x.shape[-1:]) * scales[index] + shifts[index]
    return x
