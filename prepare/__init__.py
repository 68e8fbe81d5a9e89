# The scripts say `from lib.pictures import ..`. Who imports a script from elsewhere, as in
# `from prepare import shapes`, needs this folder on the path for it.
import sys

sys.path.insert(0, __path__[0])
