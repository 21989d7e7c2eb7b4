"""How a Broker reaches its broker, and the calls under way there."""
