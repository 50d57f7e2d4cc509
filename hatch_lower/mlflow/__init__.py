"""MLflow's flavor `hatch_lower`: wheels with lowered models in MLflow's tracking store and model registry.

`log_model` and `save_model` store a wheel, `load_model` returns its model. `mlflow.pyfunc.load_model` and MLflow's
servers load the same model by the flavor `python_function`.
"""

from hatch_lower.mlflow.flavor import load_model, log_model, save_model
from hatch_lower.mlflow.served import load_pyfunc as _load_pyfunc  # MLflow calls the module's function of this name

__all__ = ["_load_pyfunc", "load_model", "log_model", "save_model"]
