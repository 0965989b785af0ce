"""The configuration: one YAML file. One module here a section of the operator's; flags of commands stand there too."""
