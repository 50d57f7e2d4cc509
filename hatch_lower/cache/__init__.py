"""Results of earlier builds: what a result depends on, and where it is kept, for this machine and for a team.

Keys are computed from values that others give. What an export has read, and whether that has changed, is known in
`build.inputs`.
"""
