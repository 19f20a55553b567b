"""Where a run works: processes, pools, Ray, several devices, placement."""
