"""Names and types, checks of settings, devices, pytrees and records: what every other room stands on."""
