"""`python -m sim.explorer`: explore the shipped machines; see `sim.exploration.explorer`."""

from sim.exploration.explorer import main

if __name__ == "__main__":
    main()
