"""TD3+BC on Pendulum-v1: train, evaluate, act, load. Same settings as the preset td3_bc/pendulum."""

from reference import run_reference

from rl_training import TD3BC

if __name__ == "__main__":
    run_reference(TD3BC, "td3_bc/pendulum", __doc__)
