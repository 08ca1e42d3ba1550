"""Parts and results: where their bytes are kept, and how they come and go."""
