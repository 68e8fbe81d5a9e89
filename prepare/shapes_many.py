"""Textured shapes, two to four in a picture, with the true mask of each.

    python prepare/shapes_many.py                           # 32 x 32 pixels; a minute, no network
    python analyze.py segment --ckpt=out/crate_shapes --dataset=shapes_many

prepare/shapes.py says more; this is that script with --objects 4.

Expect 20,000 pictures for training, 2,000 for validation (val) and 5,000 for testing (test).
"""
from lib.inputs import arguments, run
from lib.pictures import save_arrays
from prepare import shapes


def main(argv=None):
    args = arguments(__doc__, argv, *shapes.options(4), out='data/shapes_many')
    save_arrays(args.out, shapes.draw_splits(args), shapes.CLASSES)


if __name__ == '__main__':
    run(main)
