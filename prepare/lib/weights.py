"""What the scripts share that make run directories of published weights."""
from engine import networks
from lib.command_line import Parser
from lib.download import local_or_fetch

GPT2_TEXT = {'kind': 'text', 'tokenizer': {'name': 'gpt2'}}
# settings with which train.py fine-tunes if no config is named: nanoGPT's, 20 steps of 32 sequences
FINE_TUNING = {'batch_size': 1, 'gradient_accumulation_steps': 32, 'max_iters': 20, 'learning_rate': 3e-5,
               'schedule': 'constant', 'warmup_iters': 0, 'min_lr': 0.0, 'eval_interval': 5, 'eval_iters': 40,
               'log_interval': 1}


def options(doc, out_dir, url, what):
    """The command line of a script that downloads weights. what: the help of --url."""
    p = Parser(doc, 'the run in this directory')
    p.add_argument('--from', dest='source', metavar='FILE', help='a local copy instead of the download')
    p.add_argument('--out_dir', default=out_dir, help='run directory to write')
    p.add_argument('--url', default=url, help=what)
    return p


def official(model, **shape):
    """network of `prepare`, for weights as the authors of a network released them."""
    return lambda weights: networks.network(model)[0].from_official(weights, **shape)


def prepare(args, network, settings, data, url='', file='', checksum=None):
    """Writes the run of network(weights). weights: {name: tensor} of a download, or of the user's file. file: the name
    of the download; settings, data: as in engine.trained.write_run."""
    from engine.checkpoint import check_new  # here, as it imports torch: --help is fast
    from engine.official import read
    from engine.trained import write_run
    args.out = args.out_dir
    if not args.overwrite:
        check_new(args.out)
    model = network(read(local_or_fetch(args, url, None if args.source else checksum, file)))
    write_run(args.out, model, settings, data)
    print(f'{args.out}: {model.num_params():,} parameters, {model.config.n_head} heads')
