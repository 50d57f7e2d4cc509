"""What is in the wheel and in stored results: each file's reader beside its writer.

Whatever a file says is checked here, and what is wrong with it becomes a `ProgramError`. This room knows JSON and
safetensors; it neither finds files nor runs programs, and it needs no torch.
"""
