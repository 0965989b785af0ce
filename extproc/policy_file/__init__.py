"""The policy file of an operator: one YAML file, one module here a section."""

from extproc.policy_file.load import OperatorPolicy, load_policy

__all__ = ["OperatorPolicy", "load_policy"]
