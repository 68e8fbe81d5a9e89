"""The authors' CRATE-alpha as a run directory, to name what is in your photo, and to fine-tune.

    python prepare/crate_alpha_weights.py                # Base, patches of 16, 290 MB; writes out/crate_alpha_b16
    python prepare/crate_alpha_weights.py --size L14     # Large, patches of 14, 1.0 GB
    python prepare/crate_alpha_weights.py --from FILE    # your crate_alpha_B16.pth, no download
    python sample.py --ckpt=out/crate_alpha_b16 --image=assets/cat.jpg
    python analyze.py attention --ckpt=out/crate_alpha_b16 --image=assets/cat.jpg

The weights are from huggingface.co/UCSC-VLAA/CRATE-alpha. The paper reports a top-1 accuracy on
ImageNet-1K of 81.2% for B16 and 83.9% for L14. As in the authors' evaluation, the short side of a
picture becomes 224 pixels, and the centre is cut out. We could not download the weights; what is
read is checked tensor by tensor, and the download against the checksum that Hugging Face sends.

Expect 72,328,936 parameters, and 253,650,920 for L14.
"""  # noqa: E501 (--help shows it)
from lib.inputs import choice, local, local_or_fetch, option, run
from lib.weights import read_weights, save_run, weight_arguments

from engine.networks import network_class
from tasks.imagenet import names

URL = 'https://huggingface.co/UCSC-VLAA/CRATE-alpha/resolve/main/torch/'
SIZES = {'b16': {'n_head': 12, 'patch_size': 16}, 'l14': {'n_head': 16, 'patch_size': 14}}


def main(argv=None):
    args = weight_arguments(
        __doc__, argv,
        local('a local copy instead of the download'),
        option('--url', 'where crate_alpha_SIZE.pth is', default=URL),
        choice('--size', 'Base or Large', *SIZES),
        out_dir='out/crate_alpha_SIZE')

    path = local_or_fetch(args, f'{args.url}crate_alpha_{args.size.upper()}.pth')
    weights = read_weights(path)
    model = network_class('crate_alpha').from_official(
        weights, image_size=224, num_classes=1000, **SIZES[args.size])

    settings = {'dataset': 'imagenet', 'eval_crop': 1.0}
    data = {'kind': 'images', 'classes': list(names())}
    save_run(args, model, settings, data)


if __name__ == '__main__':
    run(main)
