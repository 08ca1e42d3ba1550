"""What the explorer explores: models of the shipped machines, and the catalogue of cases."""
