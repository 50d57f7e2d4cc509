"""What hatch-lower uses of torch that torch does not promise to keep: here and nowhere else.

Each module is for those who need it, and imports no more of torch than they do. `tried.json` says with which versions
of torch each private name was tried. It is not for what torch documents, and decides nothing about models.
"""
