/* What test_page.py runs inside the page, in a browser: what a hand would do, and what must change then. It leaves a
   report, JSON in <pre id="report">, in the window around. */
'use strict';
{
const problems = [], said = [];
addEventListener('error', e => problems.push(e.message));
addEventListener('unhandledrejection', e => problems.push(String(e.reason)));
console.error = (...words) => problems.push(words.join(' '));
const frame = () => new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)));
const get = name => document.querySelector(name), text = name => get(name).textContent;
const key = (name, key, more = {}) => {
  get(name).dispatchEvent(new KeyboardEvent('keydown', {key, bubbles: true, ...more}));
  return frame();
};
const press = name => { (name.click ? name : get(name)).click(); return frame(); };
const named = (tag, part) => [...document.querySelectorAll(tag)].find(b => b.textContent.includes(part));
const check = (what, whether) => { said.push((whether ? 'yes ' : 'NO ') + what); };
/** The mouse at a share of the width and height of an element. */
function mouse(name, kind, x, y) {
  const r = get(name).getBoundingClientRect(), clientX = r.left + x * r.width, clientY = r.top + y * r.height;
  get(name).dispatchEvent(new PointerEvent(kind, {clientX, clientY, bubbles: true}));
  return frame();
}
/** Whether an action changes what a part of the page says. */
async function changes(what, part, action) {
  const before = [].concat(part).map(text).join();
  await action();
  check(what, [].concat(part).map(text).join() !== before);
}
async function shared() {
  await changes('right arrow walks on', '#where', () => key('body', 'ArrowRight'));
  const here = text('#where');
  await key('body', 'ArrowRight'); await key('body', 'ArrowLeft');
  check('left arrow walks back', text('#where') === here);
  for (let i = 0; i < 40; i++) await key('body', 'ArrowLeft');
  check('the walk begins at the embedding', text('#where').includes('the embedding'));
  for (let i = 0; i < 40; i++) await key('body', 'ArrowRight');
  check('and ends after the last layer', !text('#where').includes('½'));
  await measures();
  await press('.number');
  check('a number opens its equation', get('#explain').open && text('#explain').includes('eq. (8)')
    && text('#explain').includes('measures.py') && text('#explain').includes('Lesson 1'));
  await press('#explain button');
  check('and it closes', !get('#explain').open);
}
/** At every place of the walk, and for each measure of each network: the number in words is that of the one orange
    point, and a press on this point goes to the tokens that the words name. */
async function measures() {
  const numberIn = text => parseFloat(text.replace('−', '-'));
  const boxes = () => [...document.querySelectorAll('.numbers > div')];
  const goTo = place => {
    get('#place').value = place;
    get('#place').dispatchEvent(new Event('input'));
    return frame();
  };
  let compared = 0;
  for (let place = 0; place <= Number(get('#place').max); place++) {
    await goTo(place);
    for (let i = 0; i < boxes().length; i++) {
      const inWords = numberIn(boxes()[i].querySelector('.number').textContent);
      const points = boxes()[i].querySelectorAll('.here');
      const ofPoint = numberIn(points[0].textContent.split(': ')[1]);
      const words = boxes()[i].textContent.split(':')[0], where = `at ${text('#where')}: ${words}`;
      if (points.length !== 1 || inWords !== ofPoint) check(`${where} is ${inWords}, its point ${ofPoint}`, false);
      points[0].dispatchEvent(new Event('click'));
      await frame();
      const names = text('#where').split('; ').map(state => state.split(' ')[0]);
      if (!names.includes(words.split(' in ')[1])) check(`${where}; its point leads to ${text('#where')}`, false);
      await goTo(place);
      compared += 1;
    }
  }
  check('measures are compared', compared > 20);
}
const table = '.board table';
async function switches() {
  const head = '[aria-label="head 1 of layer 3"]';
  get(head).focus();
  await changes('a head off', table, () => press(head));
  check('the keyboard stays there', document.activeElement === get(head) && !get(head).checked);
  await changes('attention off', table, () => press('[data-part=attention]'));
  await changes('as trained again', table, () => press(named('button', 'as trained')));
  await changes('mixed weights', table, () => press(named('button', 'mix the')));
  await press(named('button', 'as trained'));
}
/** The panels of atoms of all networks. */
const atomPanels = () => [...document.querySelectorAll('section.panel')].filter(panel =>
  /^(Atoms|Hidden units)/.test(panel.getAttribute('aria-label')));
async function atoms() {
  const boxes = panel => [...panel.querySelectorAll('input')], board = panel => panel.closest('.board');
  const names = panel => boxes(panel).map(box => box.getAttribute('aria-label')).join();
  const offs = panel => panel.querySelector('[role=status]').textContent;
  for (let i = 0; i < 40; i++) await key('body', 'ArrowLeft');       // the decoder, at the end, has no atoms
  await mouse('#picture', 'pointerdown', 0.5, 0.6);
  await mouse('#picture', 'pointerup', 0.5, 0.6);
  const kept = text('#pointed'), listed = atomPanels().map(names).join();
  await mouse('#picture', 'pointermove', 0.1, 0.1);
  check('a patch that was pressed is kept', text('#pointed') === kept && atomPanels().map(names).join() === listed);
  for (let i = 0; i < atomPanels().length; i++) {
    const panel = atomPanels()[i], answer = () => board(panel).querySelector('.scroll').textContent;
    const before = answer(), box = boxes(panel)[1], name = box.getAttribute('aria-label');
    check('atoms are listed', boxes(panel).length > 1 && panel.querySelectorAll('canvas').length === boxes(panel).length);
    box.focus();
    await press(box);
    const again = boxes(panel)[1];
    check('an atom off stays in its place', again.getAttribute('aria-label') === name && !again.checked);
    check('and the keyboard with it', document.activeElement === again);
    check('the answer changes', answer() !== before);
    check('a line names it', name.split(' ').every(word => offs(panel).includes(word)));
    await press([...panel.querySelectorAll('button')].pop());
    check('all on again', answer() === before && !offs(panel) && boxes(panel)[1].checked);
    await press(boxes(panel)[0]);
    await press(named('button', 'as trained'));
    if (i === 0) check('as trained', answer() === before && !offs(panel));
    else await press([...panel.querySelectorAll('button')].pop());
  }
  await mouse('#picture', 'pointerdown', 0.5, 0.6);
  await mouse('#picture', 'pointerup', 0.5, 0.6);
  await mouse('#picture', 'pointermove', 0.5, 0.1);
  check('and let go', text('#pointed') !== kept && atomPanels().map(names).join() !== listed);
}
async function pictures() {
  await changes('choosing', ['#pointed', table], () => press('#samples button:nth-child(2)'));
  await mouse('#picture', 'pointermove', 0.5, 0.1);
  check('hovering', text('#pointed').includes('row 1, column 2'));
  await key('#picture', 'ArrowDown', {shiftKey: true});
  check('down a row', text('#pointed').includes('row 2, column 2'));
  await key('#picture', 'ArrowUp');
  check('up a patch', text('#pointed').includes('row 2, column 1'));
  await shared();
  const slide = (name, value) => {
    get(name).value = value;
    get(name).dispatchEvent(new Event('input'));
    return frame();
  };
  const was = text(table), sparse = () => parseFloat(document.querySelectorAll('.number')[2].textContent);
  const before = sparse();
  await slide('[data-option=lam]', 1000);
  check('lambda makes tokens sparser', sparse() < before / 2);
  check('and changes the classes', text(table) !== was);
  await press(named('button', 'as trained'));
  check('as trained', text(table) === was && sparse() === before);
  await changes('eta', table, () => slide('[data-option=eta]', 900));
  await switches();
  await press('[data-mode=draw]');
  await slide('[aria-label="width of the brush"]', 5);
  const click = async (x, y) => {
    await mouse('#picture', 'pointerdown', x, y);
    await mouse('#picture', 'pointerup', x, y);
  };
  await changes('drawing', table, () => click(0.5, 0.5));
  await press(named('button', 'undo'));
  check('undone', text(table) === was);
  await press('[data-mode=hide]');
  const decoder = () => [...document.querySelectorAll('.board')].pop().querySelector('.scroll').textContent;
  const error = decoder();
  await click(0.5, 0.6);
  check('hiding', decoder() !== error);
  await press(named('button', 'show all'));
  check('nothing hidden', decoder().includes('none hidden'));
  await key('#picture', ' ');
  check('space hides', !decoder().includes('none hidden'));
}
async function texts() {
  await changes('choosing', ['#tokens', table], () => press('#samples button:nth-child(2)'));
  const spans = document.querySelectorAll('#tokens span');
  spans[3].dispatchEvent(new PointerEvent('pointerover', {bubbles: true})); await frame();
  check('hovering', text('#pointed').startsWith('token 4 of 12'));
  await key('#tokens', 'ArrowDown');
  check('down a token', text('#pointed').startsWith('token 5 of 12'));
  await shared();
  await switches();
  await changes('writing', ['#tokens', table], async () => { get('#writing').value = 'to be';
    get('#writing').dispatchEvent(new Event('input')); await frame(); });
  check('what was written', text('#tokens') === 'to␣be');
}
(async () => {
  await frame(); await frame();
  await (get('[data-mode=hide]') ? pictures() : get('#picture') ? shared() : texts());
  if (get('#picture')) {
    await press('[data-mode=point]');
    await atoms();
  }
  check('atoms are shown', atomPanels().length === WITH_ATOMS);
  check('nothing is wider than the window', document.documentElement.scrollWidth <= innerWidth);
  check('no fault is shown', get('#fault').hidden);
  fault('a fault');
  check('a fault would be', !get('#fault').hidden && get('#fault').getBoundingClientRect().height > 0);
})().catch(e => problems.push(e.stack)).finally(() => {
  const box = document.createElement('pre');
  box.id = 'report';
  box.textContent = JSON.stringify({said, problems, width: innerWidth, plays: !get('#play').hidden});
  parent.document.body.append(box);
});
}
