"""The border to Gymnasium: how environments are made, seeded, stepped, and put back where they were."""
