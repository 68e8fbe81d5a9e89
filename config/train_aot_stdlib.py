dataset = 'stdlib'
out_dir = 'out/aot_stdlib'
