# The scripts say `from lib.pictures import ..`. Who imports one, `from prepare import shapes`, needs this folder on the
# path for it.
import sys

sys.path.insert(0, __path__[0])
