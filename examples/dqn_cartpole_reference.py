"""DQN on CartPole-v1: train, evaluate, act, load. Same settings as the preset dqn/cartpole."""

from reference import run_reference

from rl_training import DQN

if __name__ == "__main__":
    run_reference(DQN, "dqn/cartpole", __doc__)
