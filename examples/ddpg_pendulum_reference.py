"""DDPG on Pendulum-v1: train, evaluate, act, load. Same settings as the preset ddpg/pendulum."""

from reference import run_reference

from rl_training import DDPG

if __name__ == "__main__":
    run_reference(DDPG, "ddpg/pendulum", __doc__)
