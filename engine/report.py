"""What train.py says before its first step, in a line of its log, and at its end."""
from datetime import timedelta

from engine import networks
from engine.checkpoint import run_files
from engine.distributed import print_main


def print_plan(request, task, model, folder, step):
    """What the run is going to do: the network, its data, its length, where it computes."""
    c = request.config
    print_main(f'{c.model}: {networks.size_in_words(model)}, {sizes_of(model.config, task.kind)}')

    if c.eval_only:
        print_main(f'validates on {folder or c.dataset}, writes nothing')
        print_main(f'on {task.device}')
        return

    files = f'learns {folder or c.dataset}, writes to {c.out_dir}'
    if request.default_config:
        files += f'; settings of {request.default_config}'
        if c.model != type(c).model:  # that file is for the default network
            files += f', sizes of model_{c.model}.py'
    print_main(files)

    length = f'{c.max_iters:,} steps of {task.rows_per_step} x {task.tokens_per_row} {task.unit}'
    if step > 0:
        length = f'goes on at step {step:,} of {length}'
    if folder:  # else functions, which are drawn without end
        passes = c.max_iters * task.rows_per_step / len(task.train)
        length += f', {passes:.3g} passes over the data'
    print_main(f'{length}; a validation every {c.eval_interval:,} steps')
    if step > 0 and step == c.max_iters:
        print_main('this run is finished; to go on, give a larger --max_iters')

    print_main(f'on {task.device}')
    if task.note:
        print_main(task.note)


def sizes_of(config, kind):
    """The sizes that a network's config has, such as '6 layers, width 256, 8 heads, context 64'.
    kind: of the data that it reads."""
    words = []
    for name, text in (('n_layer', '{} layers'), ('n_embd', 'width {}'), ('n_head', '{} heads')):
        if hasattr(config, name):
            words.append(text.format(getattr(config, name)))

    if kind == 'images':
        height, width = networks.as_pair(config.image_size)
        pictures = f'pictures of {height} x {width}'
        if hasattr(config, 'patch_size'):
            patch_height, patch_width = networks.as_pair(config.patch_size)
            pictures += f' in patches of {patch_height} x {patch_width}'
        words.append(pictures)
    elif kind != 'arrays' and hasattr(config, 'block_size'):
        words.append(f'context {config.block_size}')
    return ', '.join(words)


def metrics_line(metrics):
    """Such as 'loss 2.1230, bits_per_byte 3.0629'."""
    return ', '.join(f'{name} {value:.4f}' for name, value in metrics.items())


def time_left(seconds):
    """The end of a line that a run prints; '' where the seconds are None, not known yet."""
    if seconds is None:
        return ''
    return f'  {timedelta(seconds=round(seconds))} left'


def print_end(c, step, training_seconds, best_step, next_commands):
    """What a finished run has made, and the commands that show it."""
    duration = timedelta(seconds=round(training_seconds))
    made = ', '.join(run_files(c.out_dir))
    print_main(f'done: {step:,} steps, {duration} of training; {c.out_dir} holds {made}')
    if best_step < step:
        print_main(f'the validation was best at step {best_step}, and best.safetensors is of it')
    print_main('now try: ' + '\n         '.join(next_commands))
