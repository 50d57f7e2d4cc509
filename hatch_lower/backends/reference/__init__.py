"""The backend that serialises its subgraph and runs it op by op: the living definition of what a delegate returns."""
