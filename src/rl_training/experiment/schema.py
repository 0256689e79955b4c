"""JSON Schema of configurations, from the very models that check them."""

from __future__ import annotations

from typing import Any

from rl_training.experiment.config import TrainConfig
from rl_training.experiment.registry import get_algorithm_spec, list_algorithms


def hyperparameter_schema(algo: str) -> dict[str, Any]:
    """Schema of one algorithm's ``algo_kwargs``."""
    return get_algorithm_spec(algo).hyperparameters.model_json_schema()


def config_schema() -> dict[str, Any]:
    """Schema of a whole configuration; ``algo_kwargs`` depends on ``algo``."""
    schema = TrainConfig.model_json_schema()
    schema["$schema"] = "https://json-schema.org/draft/2020-12/schema"
    schema["properties"]["algo"]["enum"] = list(list_algorithms())
    definitions = schema.setdefault("$defs", {})
    conditions = []
    for algo in list_algorithms():
        own = hyperparameter_schema(algo)
        definitions |= own.pop("$defs", {})
        definitions[f"{algo}_kwargs"] = own
        conditions.append(
            {
                "if": {"properties": {"algo": {"const": algo}}},
                "then": {"properties": {"algo_kwargs": {"$ref": f"#/$defs/{algo}_kwargs"}}},
            }
        )
    schema["allOf"] = conditions
    # a schedule may be given by its name alone
    schedule = schema["properties"]["learning_rate_schedule"]
    schema["properties"]["learning_rate_schedule"] = {"anyOf": [{"type": "string"}, schedule]}
    # and a share that stays by its number
    finetune = definitions["FinetuneConfig"]["properties"]
    finetune["offline_share"] = {"anyOf": [{"type": "number"}, finetune["offline_share"]]}
    return schema
