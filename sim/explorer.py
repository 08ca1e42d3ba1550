"""`python -m sim.explorer`: explore the shipped machines; see `sim.exploration.explorer`."""

from sim.exploration.cases import app

if __name__ == "__main__":
    app()
