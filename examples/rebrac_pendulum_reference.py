"""ReBRAC on Pendulum-v1: train, evaluate, act, load. Same settings as the preset rebrac/pendulum."""

from reference import run_reference

from rl_training import ReBRAC

if __name__ == "__main__":
    run_reference(ReBRAC, "rebrac/pendulum", __doc__)
