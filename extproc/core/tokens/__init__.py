"""How many tokens a prompt has and its answer will have, and what else is learned from outcomes."""
