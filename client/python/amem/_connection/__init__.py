"""How a Broker reaches its broker, and its running calls."""
