"""The `openvino` backend: a partition as an OpenVINO model, with its weights outside the model."""
