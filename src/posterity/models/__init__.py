"""What is believed: priors, likelihoods and the joint density of a network with both, in units of its own."""
