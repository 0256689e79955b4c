"""CQL on Pendulum-v1: train, evaluate, act, load. Same settings as the preset cql/pendulum."""

from reference import run_reference

from rl_training import CQL

if __name__ == "__main__":
    run_reference(CQL, "cql/pendulum", __doc__)
