"""How a run *happens*: loops, evaluation, controls, workflows."""
