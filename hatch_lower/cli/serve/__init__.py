"""Files for model servers: the description of a method, Triton's model repository, a KServe service."""
