"""`python -m posterity`, the same as the command `posterity`."""

from posterity.cli import app

if __name__ == "__main__":
    app(prog_name="posterity")
