"""A build whose units are made elsewhere: what is sent there, what comes back, and who decides what is made where.

Nothing here lowers a model in another way than a local build does, and a local build imports nothing of it.
"""
