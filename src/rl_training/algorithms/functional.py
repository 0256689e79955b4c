"""Small pure pieces that the algorithms are composed of."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from rl_training.types import Batch, Metrics, Terms

ModuleT = TypeVar("ModuleT", bound=nn.Module)


def td_target(batch: Batch, next_values: Tensor, *, gamma: float) -> Tensor:
    """y = r + gamma (1 - terminated) V(s'), ``(batch,)``.

    ``dones`` must mean *terminated*: a time limit bootstraps like any other step. A batch of n-step transitions
    carries ``discounts`` (gamma to the power of the steps each row spans), which then replace ``gamma``.
    """
    rewards = batch["rewards"]
    if next_values.shape != rewards.shape:  # (batch,) against (batch, 1) would broadcast to (batch, batch)
        raise ValueError(f"next_values must have the shape of rewards {tuple(rewards.shape)}, got {tuple(next_values.shape)}")
    return rewards + batch.get("discounts", gamma) * (1.0 - batch["dones"]) * next_values


def quantile_td_target(batch: Batch, next_atoms: Tensor, *, gamma: float) -> Tensor:
    """:func:`td_target` for atoms of a distribution, ``(batch, atoms)``."""
    rewards, masks = batch["rewards"].unsqueeze(-1), 1.0 - batch["dones"].unsqueeze(-1)
    discounts = batch["discounts"].unsqueeze(-1) if "discounts" in batch else gamma
    return rewards + discounts * masks * next_atoms


class _QuantileHuber(torch.autograd.Function):
    """The loss below with its gradient worked out: by autograd it would pass a dozen times more over a large tensor.

    With d = atom - quantile, w = |tau - 1[d < 0]| and c = clip(d, -kappa, kappa), a term is w c (d - c / 2) / kappa, and its
    derivative by the quantile -w c / kappa.
    """

    @staticmethod
    def forward(ctx: Any, quantiles: Tensor, target_atoms: Tensor, taus: Tensor, kappa: float) -> Tensor:
        delta = target_atoms[:, None, None, :] - quantiles[..., None]  # (batch, critics, quantiles, atoms)
        clipped = delta.clamp(-kappa, kappa)
        weighted = torch.where(delta < 0, 1.0 - taus[:, None], taus[:, None]).mul_(clipped)
        ctx.save_for_backward(weighted.sum(dim=-1).div_(-kappa * delta.numel()))
        return weighted.mul_(delta.sub_(clipped, alpha=0.5)).mean() / kappa

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None, None]:
        return ctx.saved_tensors[0] * gradients[0], None, None, None


def quantile_huber_loss(*, quantiles: Tensor, target_atoms: Tensor, taus: Tensor, kappa: float = 1.0) -> Tensor:
    """Quantile Huber loss of each critic's quantiles against every target atom, averaged over all (arXiv:1710.10044).

    ``quantiles`` is ``(batch, critics, quantiles)``, ``target_atoms`` ``(batch, atoms)``, ``taus`` ``(quantiles,)``. Target
    atoms get no gradient.
    """
    loss: Tensor = _QuantileHuber.apply(quantiles, target_atoms, taus, kappa)  # type: ignore[no-untyped-call]
    return loss


def smoothed(actions: Tensor, noise_std: float, noise_clip: float, generator: torch.Generator) -> Tensor:
    """Target policy smoothing (arXiv:1802.09477): clipped Gaussian noise, then back into [-1, 1]."""
    noise = torch.randn(actions.shape, generator=generator, device=actions.device) * noise_std
    return (actions + noise.clamp(-noise_clip, noise_clip)).clamp(-1.0, 1.0)


def gaussian_exploration(actions: Tensor, noise_std: float, generator: torch.Generator) -> Tensor:
    """Actions with Gaussian noise, kept in [-1, 1]; the scale is in units of the action's half range."""
    return (actions + noise_std * torch.randn(actions.shape, generator=generator, device=actions.device)).clamp(-1.0, 1.0)


def sample_critic_subset(num_critics: int, subset_size: int, generator: torch.Generator) -> Tensor:
    """Indices of ``subset_size`` different critics."""
    return torch.randperm(num_critics, generator=generator, device=generator.device)[:subset_size]


def squared_error(prediction: Tensor, target: Tensor) -> Tensor:
    """Mean squared error of two tensors that must have one shape."""
    if prediction.shape != target.shape:
        raise ValueError(f"prediction {tuple(prediction.shape)} and target {tuple(target.shape)} differ in shape")
    return (prediction - target).square().mean()


def twin_critic_loss(*, q1: Tensor, q2: Tensor, target_q: Tensor) -> Terms:
    """Sum over both critics of the mean squared TD error; all arguments ``(batch,)``."""
    return {
        "critic_loss": squared_error(q1, target_q) + squared_error(q2, target_q),
        "q_mean": (q1.detach() + q2.detach()) * 0.5,
        "target_q_mean": target_q,
    }


def as_floats(terms: Mapping[str, Tensor | float]) -> Metrics:
    """Plain numbers, fetched from the device in one go. Of a term with several entries it is their mean.

    So an update that nobody asks for its metrics does not work them out.
    """
    tensors = [value.detach().float().mean() for value in terms.values() if isinstance(value, Tensor)]
    fetched = iter(torch.stack(tensors).tolist() if tensors else ())
    return {name: next(fetched) if isinstance(value, Tensor) else float(value) for name, value in terms.items()}


def frozen_copy(module: ModuleT) -> ModuleT:
    """A copy that no optimiser moves: the start of a target network."""
    return copy.deepcopy(module).requires_grad_(False)


def flatten_parameters(parameters: Iterable[Tensor]) -> Tensor:
    """Lay tensors out in one buffer, of which they become views; returns the buffer.

    One buffer makes a Polyak step or an optimiser step a single call instead of one per layer.
    """
    parameters = list(parameters)
    flat = torch.cat([parameter.detach().reshape(-1) for parameter in parameters])
    for parameter, view in zip(parameters, flat.split([p.numel() for p in parameters]), strict=True):
        parameter.data = view.view_as(parameter)
    return flat


def polyak_update(target: Tensor, source: Tensor, tau: float) -> None:
    """target <- (1 - tau) target + tau source, over flat buffers."""
    target.lerp_(source, tau)
