"""Small user programs that the fault tests run as real processes, and what starts, stops and watches them."""
