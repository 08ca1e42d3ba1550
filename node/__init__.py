"""The daemon and the library face."""
