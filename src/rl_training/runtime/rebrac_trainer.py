"""Entry point of ReBRAC."""

from rl_training.runtime.training import train_function

train_rebrac = train_function("rebrac")
