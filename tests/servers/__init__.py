"""Real servers for the tests: started on demand, on a free loopback port, gone with the test run."""
