"""The configuration file of an operator: one YAML file, one module here a section."""

from extproc.config_file.load import OperatorPolicy, load_policy

__all__ = ["OperatorPolicy", "load_policy"]
