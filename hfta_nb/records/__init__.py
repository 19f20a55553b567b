"""What a run leaves: events, history, store, telemetry."""
