"""The sans-IO core: values in, values out; time, chance and state are arguments."""
