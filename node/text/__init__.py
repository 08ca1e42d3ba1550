"""Text for people and programs: made fit to be shown, written to the standard streams."""
