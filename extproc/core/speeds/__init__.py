"""How fast each kind of instance is: priors, what outcomes teach, what routers tell each other."""
