"""SAC on Pendulum-v1: train, evaluate, act, load. Same settings as the preset sac/pendulum."""

from reference import run_reference

from rl_training import SAC

if __name__ == "__main__":
    run_reference(SAC, "sac/pendulum", __doc__)
