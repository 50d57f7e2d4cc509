"""The `aoti` backend: AOTInductor compiles a partition to one small shared library that holds no weights."""
