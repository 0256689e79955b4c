"""REDQ on Pendulum-v1: train, evaluate, act, load. Same settings as the preset redq/pendulum."""

from reference import run_reference

from rl_training import REDQ

if __name__ == "__main__":
    run_reference(REDQ, "redq/pendulum", __doc__)
