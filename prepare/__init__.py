# Makes prepare/ a package, so that its scripts can share code whatever else is installed.
