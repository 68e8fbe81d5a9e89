"""What the scripts share that make run directories of published weights."""
from engine import networks
from lib.inputs import local, local_or_fetch, option, script

GPT2_TEXT = {'kind': 'text', 'tokenizer': {'name': 'gpt2'}}
# settings with which train.py fine-tunes if no config is named: nanoGPT's, 20 steps of 32 sequences
FINE_TUNING = {'batch_size': 1, 'gradient_accumulation_steps': 32, 'max_iters': 20, 'learning_rate': 3e-5,
               'schedule': 'constant', 'warmup_iters': 0, 'min_lr': 0.0, 'eval_interval': 5, 'eval_iters': 40,
               'log_interval': 1}


def run(name, out_dir, *options):
    """The script that makes a run. out_dir: the default of its directory, or None if the user must name it."""
    out = option('--out_dir', 'run directory to write', dest='out', default=out_dir, required=out_dir is None)
    return script(name, check, out, *options)


def check(args):
    from engine.checkpoint import check_new  # here, as it imports torch: --help is fast
    if not args.overwrite:
        check_new(args.out)


def download(name, out_dir, url, what, *options):
    """The script that downloads weights. what: the help of --url."""
    return run(name, out_dir, local('a local copy instead of the download'), option('--url', what, default=url),
               *options)


def official(model, load='from_official', **shape):
    """network of `prepare`, for weights as the authors of a network released them. load: its method that reads them."""
    return lambda weights: getattr(networks.network(model)[0], load)(weights, **shape)


def prepare(args, network, settings, data, url='', file='', checksum=None):
    """Writes the run of network(weights). weights: {name: tensor} of a download, or of the user's file. file: the name
    of the download; settings, data: as in engine.trained.write_run."""
    from engine.official import read  # here, as it imports torch: --help is fast
    from engine.trained import write_run
    model = network(read(local_or_fetch(args, url, None if args.source else checksum, file)))
    write_run(args.out, model, settings, data)
    print(f'{args.out}: {model.num_params():,} parameters, {model.config.n_head} heads')
