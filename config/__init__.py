# Makes config/ a package, so that "from config.owt import *" in a config means this folder.
