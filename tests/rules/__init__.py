"""Rules and graph passes on instances that nobody wrote: `make fuzz-rules`."""
