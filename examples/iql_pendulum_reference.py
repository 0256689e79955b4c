"""IQL on Pendulum-v1: train, evaluate, act, load. Same settings as the preset iql/pendulum."""

from reference import run_reference

from rl_training import IQL

if __name__ == "__main__":
    run_reference(IQL, "iql/pendulum", __doc__)
