"""The `aoti` backend: AOTInductor compiles a partition to a small shared library that holds no weights."""
