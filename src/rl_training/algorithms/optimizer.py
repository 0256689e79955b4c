"""Adam over one flat buffer: the whole step is a single fused call, whatever the number of layers."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor, nn

from rl_training.algorithms.functional import flatten_parameters


class FlatAdam:
    """Adam (eps 1e-8, no weight decay) for a group of parameters that become views of one buffer, ``values``.

    ``minimize`` computes gradients for these parameters and no others: an actor's step through a critic neither
    computes nor touches gradients of the critic's weights.
    """

    def __init__(self, parameters: Iterable[nn.Parameter], learning_rate: float) -> None:
        self.parameters = list(parameters)
        self.base_learning_rate = learning_rate
        self.values = flatten_parameters(self.parameters)
        self._flat = nn.Parameter(self.values)
        self._flat.grad = torch.zeros_like(self.values)
        sizes = [parameter.numel() for parameter in self.parameters]
        for parameter, view in zip(self.parameters, self._flat.grad.split(sizes), strict=True):
            parameter.grad = view.view_as(parameter)  # backward adds into the flat gradient
        self._adam = torch.optim.Adam([self._flat], lr=learning_rate, fused=True)

    @property
    def learning_rate(self) -> float:
        """The rate now in force: the base rate times the schedule's scale."""
        return float(self._adam.param_groups[0]["lr"])

    def scale_learning_rate(self, scale: float) -> None:
        """Set the rate to ``scale`` times the base rate."""
        self._adam.param_groups[0]["lr"] = self.base_learning_rate * scale

    def minimize(self, loss: Tensor, *, max_grad_norm: float | None = None) -> None:
        """One gradient step on ``loss``."""
        gradient = self._flat.grad
        assert gradient is not None
        gradient.zero_()
        loss.backward(inputs=self.parameters)
        if max_grad_norm is not None:
            nn.utils.clip_grad_norm_([self._flat], max_grad_norm)
        self._adam.step()

    def state_dict(self) -> dict[str, Tensor]:
        """Moments and step count; empty before the first step."""
        return {name: value for name, value in self._adam.state.get(self._flat, {}).items() if isinstance(value, Tensor)}

    def _expected_state(self) -> dict[str, tuple[torch.Size, torch.dtype]]:
        moment = (self._flat.shape, self._flat.dtype)
        return {"step": (torch.Size(()), torch.float32), "exp_avg": moment, "exp_avg_sq": moment}

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """Put back what :meth:`state_dict` gave. Raises ``ValueError`` where names, shapes or types differ."""
        if state and {name: (value.shape, value.dtype) for name, value in state.items()} != self._expected_state():
            raise ValueError("the optimiser's state does not fit its parameters")
        self._adam.state.clear()
        if state:
            self._adam.state[self._flat] = {name: value.clone() for name, value in state.items()}
