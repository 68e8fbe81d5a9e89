"""What pictures say of what they show: the network, its step and layer, the scale, what is random, who chose; and
nothing that is written in them is cut off."""
import json
import re
import shutil

import matplotlib
import numpy as np
import pytest
import torch
from helpers import ROOT, edited, run_anew, run_here, save_run
from insides import cropped, fresh
from matplotlib import pyplot
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import to_rgba
from matplotlib.text import Text

import analyze
import eval as evaluate
from analysis import charts, layers
from engine import checkpoint, plots
from analysis import confusion
from weights.runs import Run, read_weights, title_of

pytestmark = pytest.mark.slow  # each draws figures
THEORIES = 'ista --n_embd=8 --tokens=8', 'compress --n_head=2 --head_dim=4 --tokens=8', 'reduction --tokens=8', \
           'tweedie --tokens=40', 'nearest --n_head=2 --head_dim=4 --tokens=6', 'majorize --n_embd=8 --tokens=4', \
           'diffuse --n_layer=8 --sets=2'
SHEET = 'augment --dataset=pics --rows=1'
AS_MANY_AS_BY_DEFAULT = 'atoms', 'attention', 'objects', 'pca', 'subspaces', 'tokens'


@pytest.fixture
def picture(place, undrawn, tmp_path):
    """A function that runs a command on a network, as `look`, and returns the figure."""
    def picture(command, name='', *words):
        if name:
            words = f'--ckpt={place}/runs/{name}', f'--data_dir={place}/data', *words
        analyze.main([*command.split(), *words, f'--out={tmp_path}/x.png', '--overwrite=true'])
        return undrawn[-1]
    return picture


def lay_out(figure):
    """Give all parts of a figure their places, and the axes their numbers, which takes half a second."""
    with plots.house_style():
        FigureCanvasAgg(figure).draw()


def written(figure):
    """What is written in a figure."""
    return [text.get_text() for text in figure.findobj(Text) if text.get_text()]


@pytest.fixture
def trained(place, tmp_path):
    """A function that makes a run which train.py could have left: NAME at a step of 2,000."""
    def trained(name, step, folder='out/a_run'):
        out = tmp_path / folder
        shutil.copytree(place / 'runs' / name, out)
        with edited(out / 'config.json') as config:
            config['settings'] |= {'init_from': 'scratch', 'max_iters': 2000}
        weights, _ = read_weights(out / 'best.safetensors')
        shutil.move(checkpoint.write_new_weights(out / 'best.safetensors', weights, step), out / 'best.safetensors')
        return out
    return trained


# ---- which network


def test_a_picture_of_the_first_weights_says_so(trained, picture, place):
    run = trained('crate', 0)
    figure = picture('layers', '', f'--ckpt={run}', f'--data_dir={place}/data', '--num_samples=2')
    assert 'UNTRAINED' in ' '.join(written(figure))


def test_weights_of_others_have_no_step(place):
    run = Run('aot', settings={}, network={}, data={})
    assert title_of('a/b/out/gpt2', run, 3, 12) == 'out/gpt2, layer 3 of 12'
    assert title_of('out/gpt2/best.safetensors', run) == 'out/gpt2'


def test_a_table_of_confusions_says_network_and_split(tmp_path, undrawn, trained, place):
    run = trained('crate', 7)
    evaluate.main([f'--ckpt={run}', f'--data_dir={place}/data', f'--confusion={tmp_path}/x.png', '--split=test'])
    title = undrawn[-1].get_suptitle()
    assert 'out/a_run, step 7 of 2,000' in title and 'test' in title and '% are right' in title
    assert confusion.drawn(np.eye(3, dtype=int), 'abc', 'a').get_suptitle() == 'a\n100.0% are right'


# ---- attention


def maps_of(figure):
    """The maps of attention of a picture, in order, and the scales of their colours."""
    images = [axis.images[0] for axis in figure.axes if axis.images and axis.images[0].get_array().ndim == 2]
    return [np.asarray(image.get_array()) for image in images], {image.get_clim() for image in images}


def test_below_the_maps_of_a_network_are_those_of_random_weights_on_the_same_scale(place, picture):
    maps, scales = maps_of(picture('attention', 'crate', '--num_samples=2', '--image={0}/FOLDER'.format(place)))
    assert len(maps) == 8 and len(scales) == 1                          # two pictures, two heads each
    random = fresh('crate')
    with torch.no_grad():
        for i in range(2):
            expected = layers.class_maps(*layers.at_layer(random, 2, cropped(place, i)))[0]
            found = np.stack(maps[4 * i + 2:4 * i + 4]).reshape(2, 12)
            assert np.allclose(found, expected, atol=1e-5) and not np.allclose(maps[4 * i], maps[4 * i + 2], atol=1e-3)


@pytest.mark.parametrize('image, is_said', [('FOLDER', True), ('data/pics', False)])
def test_of_other_pictures_the_figure_says_what_the_network_sees(image, is_said, place, picture, capsys):
    title = picture('attention', 'crate', f'--image={place}/{image}', '--num_samples=1').get_suptitle()
    for words in (title, capsys.readouterr().out):
        assert ('24 x 16 pixels' in words) == ('ant, bee, cat' in words) == is_said


def test_maps_of_equal_weights_are_dark_and_the_bar_has_numbers(place, picture):
    """Also where the network itself has random weights, so that nothing brighter is beside them."""
    run = save_run(place / 'runs' / 'quiet', fresh('crate', 3), {'kind': 'images', 'classes': ['ant', 'bee', 'cat']},
                   dataset='pics', eval_crop=0.8)
    figure = picture('attention', '', f'--ckpt={run}', f'--data_dir={place}/data')
    lay_out(figure)
    maps, scales = maps_of(figure)
    (low, high), = scales
    assert low == 0 and all(found.mean() < 0.4 * high for found in maps)
    said = written(figure)
    assert sum(words.endswith('%') for words in said) > 3               # on the bar, and in each map
    assert any('class token' in words.replace('\n', ' ') for words in said)  # beside the bar


# ---- objects


def test_objects_say_who_chose_the_head_and_what_colours_mean(picture):
    figure = picture('objects', 'crate', '--num_samples=2')
    assert 'chosen for each picture by its true mask' in figure.get_suptitle()
    legend, = figure.legends
    patches = {text.get_text(): patch.get_facecolor()[:3]
               for text, patch in zip(legend.get_texts(), legend.get_patches())}
    head = patches.pop("the head's patches")
    assert len(patches) == 3 and len({head, *patches.values()}) == 4    # MaskCut looks for three
    shown = [axis for axis in figure.axes if axis.get_title().startswith('head')]
    assert len(shown) == 2 and all(axis.images[1].cmap(0)[:3] == head for axis in shown)


# ---- words


@pytest.mark.parametrize('command', analyze.COMMANDS)
def test_a_picture_of_a_network_says_run_step_and_layer_and_no_words_are_cut_off(command, trained,
                                                                                  picture, place):
    words = [f'--ckpt={trained("crate", 1200)}', f'--data_dir={place}/data']
    if command not in AS_MANY_AS_BY_DEFAULT:
        words.append('--num_samples=3')
    figure = picture(command, '', *words)
    check_words(figure)
    said = ' '.join(written(figure)).replace('\n', ', ')
    assert 'a_run, step 1,200 of 2,000' in said and 'UNTRAINED' not in said
    if command in ('attention', 'pca', 'objects'):
        assert 'step 1,200 of 2,000, layer 2 of 3' in said


@pytest.mark.parametrize('command', [*THEORIES, SHEET])
def test_no_words_are_cut_off_without_a_network(command, picture, place):
    data = [f'--data_dir={place}/data'] if command == SHEET else []
    check_words(picture(command, '', *data))


def test_no_words_are_cut_off_where_names_are_long(picture, trained, place):
    run = trained('crate', 1200, 'a_folder_of_runs/a_run_with_a_name_that_is_rather_long')
    beside = f'--beside={place}/runs/crate_mae'
    check_words(picture('objects', '', f'--ckpt={run}', beside, f'--data_dir={place}/data'))


@pytest.mark.parametrize('command', ['attention --heads=1', 'objects', 'pca'])
def test_no_words_are_cut_off_in_a_figure_of_one_picture(command, picture):
    command, *words = command.split()
    check_words(picture(command, 'crate', '--num_samples=1', *words))


def check_words(figure):
    lay_out(figure)
    page = figure.bbox
    # numbers of ticks that lie beside the axis are there too, but are not drawn
    shown = [text for text in figure.findobj(Text)
             if text.get_visible() and re.search('[a-z]{2}', re.sub(r'\\[a-z]+', '', text.get_text()))]
    assert len(shown) > 3
    for text in shown:
        box = text.get_window_extent()
        assert page.x0 - 1 <= box.x0 and box.x1 <= page.x1 + 1, text.get_text()
        assert page.y0 - 1 <= box.y0 and box.y1 <= page.y1 + 1, text.get_text()
    titles = [axis.title.get_window_extent() for axis in figure.axes if axis.get_title()]
    assert not any(a.overlaps(b) for i, a in enumerate(titles) for b in titles[:i])


def test_what_is_counted_has_whole_numbers_on_its_axis():
    _, (steps, sizes) = charts.panels(8, 4, 2)
    charts.lines(steps, [{'name': '', 'x': x, 'y': 1} for x in range(3)], 'name', 'x', 'y')
    charts.lines(sizes, [{'name': '', 'x': x / 2, 'y': 1} for x in range(3)], 'name', 'x', 'y')
    assert all(tick == int(tick) for tick in steps.get_xticks())
    assert any(tick != int(tick) for tick in sizes.get_xticks())


def test_a_random_part_of_the_tokens_is_called_that(picture):
    said = ' '.join(written(picture('tokens', 'crate', '--size=5')))
    assert 'channel, 5 of 16\nat random' in said and 'token, 5 of 13\nat random' in said
    assert 'at random' not in ' '.join(written(picture('tokens', 'crate')))  # all are drawn


def test_lines_that_lie_on_each_other_are_all_seen():
    """They differ in colour and in the size of their markers, the first one is the largest."""
    _, (axis,) = charts.panels(4, 4, 1)
    charts.lines(axis, [{'name': name, 'x': x, 'y': 1} for name in 'abcdefg' for x in range(3)], 'name', 'x', 'y')
    assert len({to_rgba(line.get_color()) for line in axis.lines}) == 7
    sizes = [line.get_markersize() for line in axis.lines]
    assert sizes == sorted(sizes, reverse=True) and sizes[0] > sizes[2] + 3


def test_the_loss_has_a_unit_where_it_is_a_cross_entropy():
    assert plots.loss_label([{'loss': 1.0}, {'loss': 1.0, 'top1': 0.5}]) == 'loss, nats'
    assert plots.loss_label([{'loss': 1.0, 'bits_per_byte': 0.5}]) == 'loss, nats'
    assert plots.loss_label([{'loss': 1.0}]) == 'loss'                  # squared errors


# ---- files


@pytest.mark.parametrize('ending', ['svg', 'pdf'])
def test_the_same_figure_has_the_same_bytes_and_text_of_a_pdf_is_text(ending, tmp_path,
                                                                      monkeypatch):
    files = [tmp_path / f'{name}.{ending}' for name in 'ab']
    for seconds, file in zip((1e9, 1.5e9), files):
        monkeypatch.setenv('SOURCE_DATE_EPOCH', f'{seconds:.0f}')      # matplotlib takes it for the time
        analyze.main(['reduction', '--tokens=8', f'--out={file}'])
    content, again = (file.read_bytes() for file in files)
    assert content == again
    assert b'/Type3' not in content and (b'/CIDFontType2' in content) == (ending == 'pdf')


@pytest.mark.parametrize('name', ['$a_run$', r'\$x^{$'])
def test_names_of_the_user_are_no_formulas(name, tmp_path, undrawn, place, capsys):
    out = tmp_path / name
    shutil.copytree(place / 'runs' / 'crate', out)
    analyze.main(['layers', f'--ckpt={out}', f'--beside={place}/runs/vit', f'--data_dir={place}/data',
                  '--num_samples=2', f'--out={tmp_path}/x.png'])
    confused = confusion.drawn(np.eye(2, dtype=int), [name, 'b'], name)
    for figure in undrawn[-1], confused:
        lay_out(figure)
        shown = [text for text in figure.findobj(Text) if name in text.get_text().replace(r'\$', '$')]
        assert len(shown) >= 2
        for text in shown:
            with_math = text.get_window_extent()
            text.set_parse_math(False)
            text.set_text(text.get_text().replace(r'\$', '$'))
            assert text.get_window_extent().width == pytest.approx(with_math.width)


# ---- matplotlib of the user

MATPLOTLIBRC = """
axes.facecolor: black
axes.prop_cycle: cycler(color=['red', 'yellow'])
figure.constrained_layout.h_pad: 0.5
figure.dpi: 50
figure.facecolor: black
font.family: monospace
font.size: 20
image.cmap: gray
image.interpolation: bilinear
image.origin: lower
legend.loc: upper left
lines.linewidth: 5
lines.markersize: 2
path.simplify: False
savefig.bbox: tight
savefig.dpi: 50
savefig.facecolor: black
text.usetex: True
svg.fonttype: none
pdf.fonttype: 3
xtick.direction: in
"""
NOTEBOOK = 'module://no_such_library.backend_of_a_notebook'
LESSON = """
import torch
from course import lab
lab.draw('lab.png', 'step', 'loss', {'a': [3, 1, 2], 'b': [1, 2, 3]})
lab.draw_pictures('lab_pictures.png', {'random': torch.rand(2, 3, 8, 8)})
"""


@pytest.fixture
def commands(place, tiny, tmp_path):
    """Commands of all parts of the project that draw: {picture: words}."""
    lesson = tmp_path / 'lesson.py'
    lesson.write_text(LESSON)
    data = f'--data_dir={place}/data'
    network = [f'--ckpt={place}/runs/crate', data]
    a_run = tmp_path / 'a_run'
    a_run.mkdir()
    row = {'step': 0, 'seen': 0, 'seconds': 0, 'loss': 1}
    rows = [row | {'split': 'train'}, row | {'split': 'val'}]
    (a_run / 'log.jsonl').write_text('\n'.join(json.dumps(row) for row in rows) + '\n')
    return {
        'run/curve.png': ['train.py', *tiny, '--telemetry=true', '--out_dir=run',
                          '--overwrite=true'],
        'layers.png': ['analyze.py', 'layers', *network, '--num_samples=2'],
        'augment.png': ['analyze.py', 'augment', data, '--dataset=pics', '--rows=1'],
        'curves.png': ['analyze.py', 'curves', a_run],
        'diagram.png': ['analyze.py', 'diagram', '--out=diagram.png', '--overwrite=true'],
        'x.png': ['eval.py', *network, '--confusion=x.png', '--overwrite=true'],
        'y.png': ['sample.py', network[0], f'--image={place}/FOLDER', '--out=y.png'],
        'lesson3.png': ['course/pictures.py', '3', '--out=.'],
        'lab.png': [lesson],
    }


def test_settings_of_the_user_change_no_picture(commands, tmp_path):
    (tmp_path / 'matplotlibrc').write_text(MATPLOTLIBRC)
    # a notebook sets this backend, and a program outside of it cannot load it
    of_user = {'MATPLOTLIBRC': str(tmp_path / 'matplotlibrc'), 'MPLBACKEND': 'inline'}
    words = [[str(word) for word in command] for command in commands.values()]
    pictures = []
    for name, variables in (('usual', {}), ('user', of_user)):
        folder = tmp_path / name
        folder.mkdir()
        run_anew(words, folder, PYTHONPATH=str(ROOT), **variables)
        files = {}
        for path in folder.rglob('*.png'):
            files[str(path.relative_to(folder))] = path.read_bytes()
        pictures.append(files)

    usual, user = pictures
    assert usual.keys() == user.keys() == commands.keys() | {'lab_pictures.png'}
    different = [name for name in sorted(usual) if usual[name] != user[name]]
    assert different == []


@pytest.fixture
def user(tmp_path, monkeypatch):
    """This process has the settings of matplotlib of a user in a notebook."""
    file = tmp_path / 'matplotlibrc'
    file.write_text(MATPLOTLIBRC)
    monkeypatch.setitem(matplotlib.rcParams, 'backend', NOTEBOOK)
    with matplotlib.rc_context(fname=file):
        yield


def fail(*words):
    raise ZeroDivisionError


@pytest.mark.parametrize('picture', [
    'run/curve.png', 'layers.png', 'augment.png', 'curves.png', 'diagram.png', 'x.png', 'y.png',
    'lesson3.png', 'lab.png'])
def test_matplotlib_is_as_it_was_after_a_picture_and_after_an_error(picture, commands, user, curve,
                                                                    tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    before = dict(matplotlib.rcParams)
    assert before['font.size'] == 20 and before['backend'] == NOTEBOOK

    with monkeypatch.context() as patch:
        patch.setattr(FigureCanvasAgg, 'draw', fail)
        with pytest.raises(ZeroDivisionError):
            run_here(*commands[picture])
    assert dict(matplotlib.rcParams) == before

    assert matplotlib.get_backend() == NOTEBOOK
    assert not pyplot.get_fignums()     # a notebook would show them


# ---- letters of other scripts

def written_file(label, path):
    """The bytes of a figure with this label."""
    with plots.house_style():
        figure = plots.empty_figure(3, 2)
        figure.suptitle(label)
        plots.save_picture(path, figure)
    return path.read_bytes()


@pytest.mark.parametrize('label, ending', [('猫', 'png'), ('고양이 and a dog', 'pdf'),
                                           ('แมว', 'svg')])
def test_letters_that_the_font_lacks_are_one_line_that_says_how_to_name_a_font(label, ending, tmp_path,
                                                                              capsys, recwarn):
    assert written_file(label, tmp_path / f'a.{ending}')
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 1 and f'a.{ending}' in lines[0] and 'font.family: ' in lines[0]
    assert recwarn.list == []


@pytest.mark.parametrize('label', ['é, ω, кот', '猫'])
@pytest.mark.parametrize('font', ['DejaVu Serif', 'No Such Font', 'monospace'])
def test_a_font_of_the_user_is_taken_for_no_other_letters(font, label, tmp_path, capsys, caplog):
    usual = written_file(label, tmp_path / 'usual.png')
    said = capsys.readouterr().err.count('\n')
    with matplotlib.rc_context({'font.family': font}):
        assert written_file(label, tmp_path / 'users.png') == usual
    assert capsys.readouterr().err.count('\n') == said and caplog.records == []


def test_a_font_of_the_user_has_the_letters_that_ours_lacks(tmp_path, capsys):
    label = 'a \u02ef'  # a letter of this font, not of DejaVu Sans
    without = written_file(label, tmp_path / 'a.png')
    assert capsys.readouterr().err
    with matplotlib.rc_context({'font.family': ['No Such Font', 'DejaVu Serif']}):
        assert written_file(label, tmp_path / 'a.png') != without
    assert capsys.readouterr().err == ''
