"""TD3 on Pendulum-v1: train, evaluate, act, load. Same settings as the preset td3/pendulum."""

from reference import run_reference

from rl_training import TD3

if __name__ == "__main__":
    run_reference(TD3, "td3/pendulum", __doc__)
