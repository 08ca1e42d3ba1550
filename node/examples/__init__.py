"""Programs that show the library face."""
