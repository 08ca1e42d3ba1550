"""Which peers keep which blocks of a run's text, who asks whom, and who is given what. Pure."""
