"""The figure and the table of regression in context, as AoT's Figure 6: eval.py draws it."""
from analysis import figures
from engine import plots


@plots.house_style()
def draw(errors, models, title, table):
    """Write curves to a table, and as a picture next to it.

    Bands are two standard errors wide to each side. Networks have solid lines, estimators dashed
    ones. errors: of `scoring.regression.curves`; models: the names of the networks; table: a path.
    """
    figure = plots.empty_figure(6.4, 4.8)
    axis = figure.subplots()
    labels = figures.told_apart(models)
    rows = []
    for name, (mean, error) in errors.items():
        style = '-' if name in models else '--'
        line, = axis.plot(mean, style, label=plots.verbatim(labels.get(name, name)))
        low = mean - 2 * error
        high = mean + 2 * error
        axis.fill_between(range(len(mean)), low, high, color=line.get_color(), alpha=0.2)
        for i in range(len(mean)):
            rows.append((name, i, mean[i], error[i]))
    axis.set(xlabel='examples in the prompt', ylabel='squared error, normalized', title=title,
             ylim=(-0.03, 1.3))
    figures.legend_below(figure, [axis], 'bands: two standard errors; errors above 1.3 not shown')
    columns = ['estimator', 'examples', 'error', 'standard_error']
    figures.save(table.with_suffix('.png'), figure, columns, rows)
