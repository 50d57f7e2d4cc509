"""The backend that serializes its subgraph and runs it op by op: the living definition of a delegate's results."""
