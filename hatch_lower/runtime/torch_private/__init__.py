"""What hatch-lower uses of torch that torch does not promise to keep: here and nowhere else.

Each module is for those who need it, and imports no more of torch than they do; `X as X` hands a name on. `tried.json`
says with which versions of torch each private name was tried. It decides nothing about models.
"""
