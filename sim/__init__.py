"""The proving ground: the shipped machines in virtual time."""
