"""Off-policy evaluation: how good a policy is, judged from data alone, without playing it."""
