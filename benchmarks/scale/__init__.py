"""Growth of the service: measured costs at 1, 10, 100 and 1,000 x, and simulations of up to 10,000 agents."""
