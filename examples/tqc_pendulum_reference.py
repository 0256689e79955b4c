"""TQC on Pendulum-v1: train, evaluate, act, load. Same settings as the preset tqc/pendulum."""

from reference import run_reference

from rl_training import TQC

if __name__ == "__main__":
    run_reference(TQC, "tqc/pendulum", __doc__)
