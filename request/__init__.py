"""How a command line becomes a run, or a look at a trained network. Programs call what is here,
also those in prepare/ and the page of analyze.py.

start.py     the settings of a run, and their ranges
trained.py   the same where a run begins with trained weights, or a command looks at them
build.py     the network of a run
forms.py     whether the two forms of its attention agree
help.py      --help and --version
"""
