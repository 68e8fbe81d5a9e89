"""The authors' CRATE-alpha as a run directory, to name what is in your photo, and to fine-tune.

    python prepare/crate_alpha_weights.py                # Base, patches of 16, 290 MB; writes out/crate_alpha_b16
    python prepare/crate_alpha_weights.py --size L14     # Large, patches of 14, 1.0 GB
    python prepare/crate_alpha_weights.py --from FILE    # your crate_alpha_B16.pth, no download
    python sample.py --ckpt=out/crate_alpha_b16 --image=cat.jpg
    python analyze.py attention --ckpt=out/crate_alpha_b16 --image=cat.jpg

The weights are from huggingface.co/UCSC-VLAA/CRATE-alpha. The paper reports a top-1 accuracy on
ImageNet-1K of 81.2% for B16 and 83.9% for L14. As in the authors' evaluation, the short side of a
picture becomes 224 pixels, and the centre is cut out. We could not download the weights; what is
read is checked tensor by tensor.

Expect 72,328,936 parameters, and 253,650,920 for L14.
"""
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from engine.settings import one_line_errors
from prepare.lib.command_line import Parser
from prepare.lib.download import local_or_fetch

URL = 'https://huggingface.co/UCSC-VLAA/CRATE-alpha/resolve/main/torch/'
SIZES = {'B16': (12, 16), 'L14': (16, 14)}  # heads, pixels of a patch


def main(argv=None):
    p = Parser(__doc__)
    p.add_argument('--size', choices=SIZES, default='B16', help='default: %(default)s')
    p.add_argument('--from', dest='source', metavar='FILE', help='a local copy instead of the download')
    p.add_argument('--out_dir', help='run directory to write (default: out/crate_alpha_SIZE)')
    p.add_argument('--overwrite', action='store_true', help='replace the run in this directory')
    p.add_argument('--url', default=URL, help='where crate_alpha_SIZE.pth is (default: %(default)s)')
    args = p.parse_args(argv)
    from engine import official  # here, as it imports torch: --help is fast
    from engine.checkpoint import check_new
    from engine.trained import write_run
    from model_crate_alpha import CRATEAlpha
    from tasks.imagenet import names
    out, file = Path(args.out_dir or f'out/crate_alpha_{args.size.lower()}'), f'crate_alpha_{args.size}.pth'
    if not args.overwrite:
        check_new(out)
    weights = official.read(local_or_fetch(args.source, args.url + file, out.parent / 'downloads' / file))
    (n_head, patch_size), classes = SIZES[args.size], list(names())
    model = CRATEAlpha.from_official(weights, n_head=n_head, image_size=224, patch_size=patch_size,
                                     num_classes=len(classes))
    write_run(out, model, {'dataset': 'imagenet'} | official.VIEWS['crate_alpha'],
              {'kind': 'images', 'classes': classes}, 'run this again, or name another --out_dir')
    print(f'{out}: {model.num_params():,} parameters')


if __name__ == '__main__':
    with one_line_errors():
        main()
