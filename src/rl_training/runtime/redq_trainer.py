"""Entry point of REDQ."""

from rl_training.runtime.training import train_function

train_redq = train_function("redq")
