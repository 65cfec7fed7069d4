"""`python -m posterity`, the same as the command `posterity`."""

from posterity.cli import app

app()
