"""Who decides: heuristics, policies, and the algorithms that train them."""
