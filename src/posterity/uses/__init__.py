"""What a posterior is for: to decide, to ask for labels, to check methods, to compare models, to learn on."""
