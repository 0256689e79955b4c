"""Returns of a random and of an expert policy, for scores in percent.

D4RL's constants, from ``d4rl/infos.py`` and ``d4rl/gym_mujoco/__init__.py`` of Farama-Foundation/D4RL; the same for every
dataset of a robot. Minari datasets carry their own where they have any. Note that the v5 tasks of Gymnasium differ a little
from those of D4RL: the score is then a convention, not a comparison with published ones.
"""

from __future__ import annotations

from typing import NamedTuple


class ReferenceReturns(NamedTuple):
    """What 0 and 100 percent stand for."""

    random: float
    expert: float

    def normalized(self, episode_return: float) -> float:
        """The score in percent."""
        return 100.0 * (episode_return - self.random) / (self.expert - self.random)


D4RL = {
    "halfcheetah": ReferenceReturns(-280.178953, 12135.0),
    "hopper": ReferenceReturns(-20.272305, 3234.3),
    "walker2d": ReferenceReturns(1.629008, 4592.3),
    "ant": ReferenceReturns(-325.6, 3879.7),
    "adroithandpen": ReferenceReturns(96.262799, 3076.8331017826877),
    "adroithandhammer": ReferenceReturns(-274.856578, 12794.134825156867),
    "adroithanddoor": ReferenceReturns(-56.512833, 2880.5693087298737),
    "adroithandrelocate": ReferenceReturns(-6.425911, 4233.877797728884),
}


def reference_returns(env_id: str | None) -> ReferenceReturns | None:
    """D4RL's constants for an environment, by the name before its version."""
    name = (env_id or "").split("/")[-1].rsplit("-v", 1)[0].lower()
    return D4RL.get(name)
