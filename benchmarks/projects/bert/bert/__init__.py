"""An encoder of BERT-base's size with random weights."""
