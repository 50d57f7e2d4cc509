"""What an export read: watched in the child process, checked before the next build in the parent."""
