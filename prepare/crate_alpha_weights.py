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
from lib.inputs import choice
from lib.weights import download, official, prepare
from tasks.imagenet import names

URL = 'https://huggingface.co/UCSC-VLAA/CRATE-alpha/resolve/main/torch/'
SIZES = {'B16': {'n_head': 12, 'patch_size': 16}, 'L14': {'n_head': 16, 'patch_size': 14}}


@download(__name__, 'out/crate_alpha_SIZE', URL, 'where crate_alpha_SIZE.pth is',
          choice('--size', 'Base or Large', *SIZES))
def main(args):
    prepare(args, official('crate_alpha', image_size=224, num_classes=1000, **SIZES[args.size]),
            {'dataset': 'imagenet', 'eval_crop': 1.0}, {'kind': 'images', 'classes': list(names())},
            f'{args.url}crate_alpha_{args.size}.pth')
