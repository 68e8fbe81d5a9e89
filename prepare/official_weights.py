"""A file of weights as its authors released it, as a run directory: to score, to look at, and to fine-tune.

    python prepare/official_weights.py crate_base.pth --model crate --n_head 12 --out_dir out/crate_base
    python prepare/official_weights.py mae_crate_base.pth --model crate_mae --n_head 12 --out_dir out/mae
    python prepare/official_weights.py crate_gpt.pt --model crate --n_head 12 --image_size 0 --out_dir out/crate_gpt
    python prepare/official_weights.py crate-demo.pth --model crate --n_head 6 --patch_size 8 --out_dir out/crate_demo
    python eval.py --ckpt=out/crate_base --dataset=imagenet
    python prepare/official_weights.py dino_deitsmall16_pretrain.pth --model vit --n_head 6 --out_dir out/dino_small
    python train.py --init_from=out/crate_base --dataset=cifar10 --new_head=true

Files of CRATE, CRATE-alpha, CRATE-MAE, ToST, ViT (as in timm) and ViT-MAE; with --image_size 0 those of CRATE-GPT
(--model crate), CRATE-LM (--model crate_alpha) and ToST. No tensor tells the number of heads. A file of an
autoencoder without its decoder gets a small one with random weights, so its encoder alone is of use. With
--model vit the encoder of MAE or DINO becomes a ViT, whose classifier is zeros. Back again, in Python:
torch.save(model.to_official(), 'crate.pth'). prepare/gpt2_weights.py --help has the same for GPT-2 and AoT.
"""  # noqa: E501 (--help shows it)
import math

from lib.inputs import local_or_fetch, number, option, run
from lib.weights import TOKENIZER, read_weights, save_run, text_data, weight_arguments

from engine import HERE
from engine.networks import config_class, network_class
from engine.settings import cast_size, read_file

# a file holds the positions under one of these names
POSITIONS = 'pos_embedding', 'decoder_pos_embed', 'pos_embed'
VIEWS = {'crate_alpha': {'eval_crop': 1.0}}  # what their evaluation sees, where not our default
# in config/base/transfer.py
NOT_OF_TRAINING = 'model', 'init_from', 'new_head', 'new_norm', 'image_size', 'label_smoothing'


def network_of(weights, args):
    """The network with these weights, {name: tensor}, for the words of the command line. Parts that
    the file lacks are added, and a line is printed."""
    from weights import official  # here, as it imports torch: --help is fast
    Network = network_class(args.model)
    Config = config_class(args.model)
    if args.model == 'vit':
        weights, left_out = official.encoder_of(weights)
        if left_out:
            parts = sorted({name.split('.')[0] for name in left_out})
            print(f'left out, because a classifier has no such part: {", ".join(parts)}')

    shape = {'n_head': args.n_head, 'patch_size': args.patch_size, 'image_size': args.image_size}
    if args.image_size is None:
        side = side_of(weights)
        shape['image_size'] = side * args.patch_size
        print(f'pictures of {side} x {side} patches are assumed; if they are others, give '
              '--image_size=HEIGHT,WIDTH')
    if args.model == 'vit_mae':
        shape['decoder_n_head'] = args.decoder_n_head

    lacks_decoder = 'norm.weight' in weights and 'decoder_pred.weight' not in weights
    if args.model.endswith('_mae') and lacks_decoder:
        print('the file has no decoder: a small random one takes its place')
        n_embd = len(weights['norm.weight'])
        small = Network(Config(n_layer=1, decoder_n_layer=1, n_embd=n_embd, **shape))
        weights = decoder_of(small) | weights
    if lacks_classifier(weights, args.model):
        print('the file has no classifier: one of zeros takes its place; fine-tune it with '
              '--new_head=true')
    return Network.from_official(weights, **shape)


def lacks_classifier(weights, model):
    """Whether a file of pictures for this network, {name: tensor}, ends before the classifier."""
    from weights import official
    if 'cls_token' not in weights:
        return False
    if model == 'crate':
        return not official.has_classifier(weights)
    return model == 'vit' and not official.has_head(weights)


def side_of(weights):
    """How many patches a side of a picture has, which the number of positions tells; 14 if there
    are no positions."""
    for name in POSITIONS:
        if name in weights:
            n_patches = weights[name].shape[1] - 1  # one position is the class token's
            return math.isqrt(n_patches)
    return 14


def pixels(text):
    """'224' -> 224, and '16,64', height and width, -> (16, 64)."""
    sides = [int(side) for side in text.split(',')]
    return cast_size(sides if len(sides) > 1 else sides[0])


def decoder_of(model):
    """{name: tensor} of the decoder of an autoencoder, under the authors' names."""
    return {name: tensor for name, tensor in model.to_official().items()
            if name.startswith(('decoder', 'mask_token'))}


def main(argv=None):
    args = weight_arguments(
        __doc__, argv,
        option('source', 'the file of weights', metavar='file'),
        option('--model', 'its network', required=True,
               type=str.lower,
               choices=('crate', 'crate_alpha', 'crate_mae', 'tost', 'vit', 'vit_mae')),
        option('--n_head', 'heads of a layer, 12 in Base', required=True, type=int),
        number('--decoder_n_head', "heads of ViT-MAE's decoder", 16, 1, 999),
        option('--image_size', 'pixels, or HEIGHT,WIDTH; without, a square with as many patches as '
               'there are positions; 0: text', type=pixels),
        number('--patch_size', 'pixels', 16, 1, 999),
        option('--weights', 'of a file with several, their name, such as model_ema', default=''),
        TOKENIZER)

    path = local_or_fetch(args, url='')
    weights = read_weights(path, args.weights)
    model = network_of(weights, args)
    if args.image_size == 0:
        save_run(args, model, {}, text_data(model, args.tokenizer))
    else:
        settings = read_file(f'{HERE}/config/base/transfer.py')  # with which train.py fine-tunes
        for name in NOT_OF_TRAINING:
            settings.pop(name, None)
        settings |= VIEWS.get(args.model, {})
        save_run(args, model, settings, {'kind': 'images', 'classes': None})


if __name__ == '__main__':
    run(main)
