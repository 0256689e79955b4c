"""Wild input of every kind, and the rule it is held to: success or a ``UserError``, nothing else.

``python -m tests.fuzz.run --cases 20000 --seed 0`` runs many cases, ``pytest tests/fuzz`` a few hundred.
"""
