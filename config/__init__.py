# Makes config/ a package, so that "from config.base.owt import *" in a config means this folder.
