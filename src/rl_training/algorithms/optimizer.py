"""Adam over one flat buffer: the whole step is a single fused call, whatever the number of layers."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor, nn
from torch.optim.adam import adam

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
        self._gradient = torch.zeros_like(self.values)
        sizes = [parameter.numel() for parameter in self.parameters]
        for parameter, view in zip(self.parameters, self._gradient.split(sizes), strict=True):
            parameter.grad = view.view_as(parameter)  # backward adds into the flat gradient
        self.learning_rate = learning_rate  # now in force: the base rate times the schedule's scale
        self._state = {
            "step": torch.zeros((), dtype=torch.float32, device=self.values.device),
            "exp_avg": torch.zeros_like(self.values),
            "exp_avg_sq": torch.zeros_like(self.values),
        }

    def scale_learning_rate(self, scale: float) -> None:
        """Set the rate to ``scale`` times the base rate."""
        self.learning_rate = self.base_learning_rate * scale

    def minimize(self, loss: Tensor, *, max_grad_norm: float | None = None) -> None:
        """One gradient step on ``loss``."""
        self._gradient.zero_()
        loss.backward(inputs=self.parameters)
        if max_grad_norm is not None:  # as torch's clip_grad_norm_, which takes parameters and not a flat gradient
            self._gradient.mul_((max_grad_norm / (self._gradient.norm() + 1e-6)).clamp(max=1.0))
        self._step()

    @torch.no_grad()
    def _step(self) -> None:
        """torch's own Adam as a function: the optimiser object around it costs more than the step of a small network."""
        adam(
            [self.values],
            [self._gradient],
            [self._state["exp_avg"]],
            [self._state["exp_avg_sq"]],
            [],
            [self._state["step"]],
            fused=True,
            amsgrad=False,
            beta1=0.9,
            beta2=0.999,
            lr=self.learning_rate,
            weight_decay=0.0,
            eps=1e-8,
            maximize=False,
        )

    def state_dict(self) -> dict[str, Tensor]:
        """Moments and step count; empty before the first step."""
        return dict(self._state) if self._state["step"].item() > 0 else {}

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """Put back what :meth:`state_dict` gave. Raises ``ValueError`` where names, shapes or types differ."""
        expected = {name: (value.shape, value.dtype) for name, value in self._state.items()}
        if state and {name: (value.shape, value.dtype) for name, value in state.items()} != expected:
            raise ValueError("the optimiser's state does not fit its parameters")
        for name, value in self._state.items():
            value.copy_(state[name]) if state else value.zero_()
