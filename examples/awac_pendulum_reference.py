"""AWAC on Pendulum-v1: train, evaluate, act, load. Same settings as the preset awac/pendulum."""

from reference import run_reference

from rl_training import AWAC

if __name__ == "__main__":
    run_reference(AWAC, "awac/pendulum", __doc__)
