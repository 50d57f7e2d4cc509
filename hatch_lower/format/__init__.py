"""File formats of wheels and stored results: each file's reader beside its writer.

Readers check every value; a wrong value becomes a `ProgramError`. This room knows JSON and safetensors. Other rooms
find the files and run the programs. No module here needs torch.
"""
