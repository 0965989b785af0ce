"""Client APIs: one file each turns a body into the prompt that routing needs."""
