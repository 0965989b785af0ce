"""Choosing the model: from the name that a client asks for to the models that may serve it, and what each is worth."""
