"""OpenAI's GPT-2 as a run directory, to score, to sample from, and to fine-tune.

    python prepare/gpt2_weights.py                       # 124M parameters, 550 MB; writes out/gpt2
    python prepare/gpt2_weights.py --size gpt2-xl        # or gpt2-medium, gpt2-large
    python prepare/gpt2_weights.py --from FILE           # your model.safetensors, no download
    python eval.py --ckpt=out/gpt2 --benchmarks=all
    python train.py --init_from=out/gpt2 --dataset=shakespeare

The weights are from huggingface.co. Their GELU is the tanh approximation with which OpenAI trained
it (gelu='tanh').

Expect 124,439,808 parameters; 354,823,168, 774,030,080 and 1,557,611,200 for the larger sizes.
"""
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from engine.settings import Mistake, one_line_errors
from prepare.lib.command_line import Parser
from prepare.lib.download import local_or_fetch

URL = 'https://huggingface.co/openai-community/'
CHECKSUMS = {'gpt2': '248dfc3911869ec493c76e65bf2fcf7f615828b0254c12b473182f0f81d3a707',
             'gpt2-medium': 'fc5a354a19255ad494f3d71549390baca1ccf61d1d822b9408971705c687c9cd',
             'gpt2-large': '5f47f3e12f91cd33b662ce7e433b6150ad5512b5884a2cee961b50e9c3bbebce',
             'gpt2-xl': '0f8b28eb05a8075f48b61b6f35332978c74fc7763fa9fb4051a1c30511736a6a'}
# settings with which train.py fine-tunes if no config is named: nanoGPT's, 20 steps of 32 sequences
FINE_TUNING = {'batch_size': 1, 'gradient_accumulation_steps': 32, 'max_iters': 20, 'learning_rate': 3e-5,
               'schedule': 'constant', 'warmup_iters': 0, 'min_lr': 0.0, 'eval_interval': 5, 'eval_iters': 40,
               'log_interval': 1}


def main(argv=None):
    p = Parser(__doc__)
    p.add_argument('--size', choices=CHECKSUMS, default='gpt2', help='default: %(default)s')
    p.add_argument('--from', dest='source', metavar='FILE', help='a local model.safetensors instead of the download')
    p.add_argument('--n_head', type=int, help="heads of a layer (default: 64 wide each, as OpenAI's)")
    p.add_argument('--out_dir', help='run directory to write (default: out/SIZE)')
    p.add_argument('--overwrite', action='store_true', help='replace the run in this directory')
    p.add_argument('--url', default=URL, help='where SIZE/resolve/main/model.safetensors is (default: %(default)s)')
    args = p.parse_args(argv)
    from engine import official  # here, as it imports torch: --help is fast
    from engine.checkpoint import check_new
    from engine.trained import write_run
    from model_aot import AoT
    out = Path(args.out_dir or f'out/{args.size}')
    if not args.overwrite:
        check_new(out)
    path = local_or_fetch(args.source, f'{args.url}{args.size}/resolve/main/model.safetensors',
                          out.parent / 'downloads' / f'{args.size}.safetensors',
                          None if args.source else CHECKSUMS[args.size])
    weights = official.read(path)
    width = next((t.shape[-1] for name, t in weights.items() if name.endswith('wte.weight')), 768)
    model = AoT.from_gpt2(weights, n_head=args.n_head or width // 64, gelu='tanh')
    if model.config.vocab_size < 50257:
        raise Mistake(f"{path} knows {model.config.vocab_size} tokens, GPT-2's tokenizer 50257; take another file")
    write_run(out, model, FINE_TUNING, {'kind': 'text', 'tokenizer': {'name': 'gpt2'}},
              'run this again, or name another --out_dir')
    print(f'{out}: {model.num_params():,} parameters, {model.config.n_head} heads')


if __name__ == '__main__':
    with one_line_errors():
        main()
