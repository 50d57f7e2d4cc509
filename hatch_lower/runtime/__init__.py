"""What runs in an installed wheel's environment: no hatchling, no click, no lowering, no compiler."""
