"""Tables: columns into numbers, defaults that suit them, estimators, and a comparison of all methods."""
