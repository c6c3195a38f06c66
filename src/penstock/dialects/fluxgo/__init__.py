"""The FluxGo dialect, first generation (V1): length-prefixed binary frames, one record a request."""
