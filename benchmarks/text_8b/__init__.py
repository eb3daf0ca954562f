"""How many tokens a second networks of LLaDA-8B's shapes write, and what limits them."""
