"""OpenAI's GPT-2 as a run directory, to score, to sample from, and to fine-tune.

    python prepare/gpt2_weights.py                       # 124M parameters, 550 MB; writes out/gpt2
    python prepare/gpt2_weights.py --size gpt2-xl        # or gpt2-medium, gpt2-large
    python prepare/gpt2_weights.py --from FILE           # your model.safetensors, no download
    python prepare/gpt2_weights.py --from ckpt.pt --n_head 6 --tokenizer data/shakespeare_char --out_dir out/nano
    python eval.py --ckpt=out/gpt2 --benchmarks=all
    python train.py --init_from=out/gpt2 --dataset=shakespeare

The weights are from huggingface.co. Their GELU is the tanh approximation with which OpenAI trained
it (--gelu tanh). A ckpt.pt of nanoGPT is read too; nanoGPT computes GELU exactly (--gelu none). If
its tokens are not GPT-2's, prepare the same text here and give that folder as --tokenizer;
nanoGPT's characters are in the same order.

A GPT-2 that was trained here goes out again in Python, and so does AoT, in nanoGPT's names:

    import safetensors.torch, torch
    from weights.runs import open_run
    from weights.surgery import load_model
    model = load_model(open_run('out/gpt2_owt'))
    torch.save({'model': model.to_official()}, 'ckpt.pt')
    safetensors.torch.save_file(model.to_hugging_face(), 'model.safetensors', {'format': 'pt'})

nanoGPT's sample.py asks for 'model_args' in ckpt.pt too, a dict with n_layer, n_head, n_embd,
block_size, bias, vocab_size and dropout. Hugging Face's GPT2Config gets n_layer, n_head, n_embd,
n_positions, vocab_size=50257, and the activation_function: 'gelu', or 'gelu_new' for gelu='tanh'.
No file tells --gelu: give it where yours is not the one that is assumed.

Expect 124,439,808 parameters; 354,823,168, 774,030,080 and 1,557,611,200 for the larger sizes.
"""  # noqa: E501 (--help shows it)
from lib.inputs import choice, local, local_or_fetch, option, run
from lib.weights import FINE_TUNING, TOKENIZER, read_weights, save_run, text_data, weight_arguments

from engine.networks import network_class

URL = 'https://huggingface.co/openai-community/'
SIZES = {  # heads, sha256
    'gpt2': (12, '248dfc3911869ec493c76e65bf2fcf7f615828b0254c12b473182f0f81d3a707'),
    'gpt2-medium': (16, 'fc5a354a19255ad494f3d71549390baca1ccf61d1d822b9408971705c687c9cd'),
    'gpt2-large': (20, '5f47f3e12f91cd33b662ce7e433b6150ad5512b5884a2cee961b50e9c3bbebce'),
    'gpt2-xl': (25, '0f8b28eb05a8075f48b61b6f35332978c74fc7763fa9fb4051a1c30511736a6a'),
}


def main(argv=None):
    args = weight_arguments(
        __doc__, argv,
        local('a local copy instead of the download'),
        option('--url', 'where SIZE/resolve/main/model.safetensors is', default=URL),
        choice('--size', 'which GPT-2', *SIZES),
        option('--n_head', "heads of a layer; without, as many as OpenAI's has", type=int),
        option('--gelu', 'none: exact; tanh: approximated; without, none for a file of nanoGPT, '
               'else tanh', type=str.lower, choices=('none', 'tanh')),
        TOKENIZER,
        out_dir='out/SIZE')

    heads, sha256 = SIZES[args.size]
    url = f'{args.url}{args.size}/resolve/main/model.safetensors'
    path = local_or_fetch(args, url, None if args.source else sha256, f'{args.size}.safetensors')
    weights = read_weights(path)
    from weights.official import is_of_nanogpt  # here, as it imports torch: --help is fast
    gelu = args.gelu
    if gelu is None:
        gelu = 'none' if is_of_nanogpt(weights) else 'tanh'
    Network = network_class('aot')
    model = Network.from_gpt2(weights, n_head=args.n_head or heads, gelu=gelu)
    save_run(args, model, FINE_TUNING, text_data(model, args.tokenizer))


if __name__ == '__main__':
    run(main)
