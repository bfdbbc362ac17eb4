"""Entry point of `python -m runner`."""

from runner.cli.main import main

if __name__ == "__main__":
    main()
