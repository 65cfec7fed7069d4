"""The warning of a fit that came to its end and should not be used as it is."""


class ConvergenceWarning(UserWarning):
    """Chains have not converged, or a descent ended above where it began; the message gives the remedy."""
