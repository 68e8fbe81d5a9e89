# `from prepare import shapes`: the scripts say `from lib.pictures import ..`, as if this folder were on the path.
import sys

sys.path.insert(0, __path__[0])
