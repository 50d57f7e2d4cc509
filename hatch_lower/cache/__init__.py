"""Results of earlier builds: what a result depends on, and where it is kept."""
