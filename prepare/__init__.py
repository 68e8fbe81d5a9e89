# Makes prepare/ a package, so that the scripts can import prepare.lib whatever else is installed.
