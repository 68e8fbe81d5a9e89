"""The authors' CRATE-alpha as a run directory, to name what is in your photo, and to fine-tune.

    python prepare/crate_alpha_weights.py                # Base, patches of 16, 290 MB; writes out/crate_alpha_b16
    python prepare/crate_alpha_weights.py --size L14     # Large, patches of 14, 1.0 GB
    python prepare/crate_alpha_weights.py --from FILE    # your crate_alpha_B16.pth, no download
    python sample.py --ckpt=out/crate_alpha_b16 --image=cat.jpg
    python analyze.py attention --ckpt=out/crate_alpha_b16 --image=cat.jpg

The weights are from huggingface.co/UCSC-VLAA/CRATE-alpha. The paper reports a top-1 accuracy on
ImageNet-1K of 81.2% for B16 and 83.9% for L14. As in the authors' evaluation, the short side of a
picture becomes 224 pixels, and the centre is cut out. We could not download the weights; what is
read is checked tensor by tensor, and the download against the checksum that Hugging Face sends.

Expect 72,328,936 parameters, and 253,650,920 for L14.
"""
from lib.command_line import run
from lib.weights import options, prepare
from tasks.imagenet import names

URL = 'https://huggingface.co/UCSC-VLAA/CRATE-alpha/resolve/main/torch/'
SIZES = {'B16': (12, 16), 'L14': (16, 14)}  # heads, pixels of a patch


def main(argv=None):
    p = options(__doc__, 'out/crate_alpha_SIZE', URL, 'where crate_alpha_SIZE.pth is')
    p.add_argument('--size', choices=SIZES, default='B16', help='default: %(default)s')
    args = p.parse_args(argv)
    (n_head, patch_size), classes, file = SIZES[args.size], list(names()), f'crate_alpha_{args.size}.pth'

    def network(weights):
        from model_crate_alpha import CRATEAlpha
        return CRATEAlpha.from_official(weights, n_head=n_head, image_size=224, patch_size=patch_size, num_classes=1000)
    prepare(args, f'out/crate_alpha_{args.size.lower()}', network, {'dataset': 'imagenet', 'eval_crop': 1.0},
            {'kind': 'images', 'classes': classes}, args.url + file, file)


if __name__ == '__main__':
    run(main)
