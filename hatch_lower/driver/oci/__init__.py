"""OCI artifacts of lowered models, as the ModelPack specification has them: written from wheels, and unpacked again."""
