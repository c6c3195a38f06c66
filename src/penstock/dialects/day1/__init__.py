"""The Day1 dialect: mini-kafka v1.0.0, two requests over length-prefixed frames."""
