"""Who runs whose training again, and what follows from it (R10). Pure."""
