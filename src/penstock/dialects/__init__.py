"""The protocols. Each is a sans-I/O session: bytes in, broker calls, bytes out; none knows another."""
