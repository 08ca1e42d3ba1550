"""The command `barnraise`, also as `python -m barnraise`."""

from node.cli import main

if __name__ == "__main__":
    main()
