"""FlyMQ: the API-key frames of its document and the opcode frames of its clients, on one port."""
