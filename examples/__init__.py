"""Programs and components to start from; `docs/extending.md` says how each of them is used."""
