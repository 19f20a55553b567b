"""Where a run works: processes, crews, Ray, several devices, placement."""
