"""Everything on one machine: starts all parts, sends sample traffic, shows what happens."""
