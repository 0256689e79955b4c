"""Behaviour cloning on Pendulum-v1: train, evaluate, act, load. Same settings as the preset bc/pendulum."""

from reference import run_reference

from rl_training import BC

if __name__ == "__main__":
    run_reference(BC, "bc/pendulum", __doc__)
