"""The blocks of one model: who keeps them, how large they are, and what may be held beside them."""
