// Opens files, asks the library about them and draws the answers. Numbers come from engine.js, which is page.cpp. What is
// computed here are places on the screen.
'use strict';

const sliceBytes = 1 << 20;
const maxLinkText = 20000;  // a longer config.json does not become part of the link
const maxDials = 256;
const changes = [
  {name: 'kept', colour: 'var(--blue)'}, {name: 'blended', colour: 'var(--green)'},
  {name: 'interpolated', colour: 'var(--vermilion)'}, {name: 'stopped', colour: 'var(--grey)'}
];

const byId = (id) => document.getElementById(id);
const escaped = (text) => String(text).replace(/[&<>"']/g, (c) => `&#${c.charCodeAt(0)};`);
const short = (number) => number.toLocaleString('en', {notation: 'compact'});
const grouped = (number) => number.toLocaleString('en');

let engine;
const models = [null, null];  // what was read of the model, and of the one to compare with
let group = 0;                // of the model, in the figures
let curve = null;             // scores_by_distance of that group
let position = 20;            // of the query

function ask(name, ...values) {
  const types = values.map((value) => typeof value === 'string' ? 'string' : 'number');
  return JSON.parse(engine.ccall(name, 'string', types, values));
}

// Files.

const sources = ['Model', 'Compare with'].map((legend, index) => {
  const fieldset = byId('source').content.cloneNode(true).firstElementChild;
  const part = (selector) => fieldset.querySelector(selector);
  const source = {index, file: null, bytes: 0, reads: 0, status: part('.status')};
  source.examples = part('.example');
  source.text = part('textarea');
  part('legend').textContent = legend;
  source.examples.add(new Option('none', ''));
  for (const name of Object.keys(exampleConfigs)) source.examples.add(new Option(name, name));
  source.examples.onchange = () => openExample(source, source.examples.value);
  source.text.oninput = () => openText(source, source.text.value);
  part('.file').onchange = (event) => openFile(source, event.target.files[0]);
  fieldset.ondragover = () => fieldset.classList.add('target');
  fieldset.ondragleave = () => fieldset.classList.remove('target');
  fieldset.ondrop = (event) => {
    event.preventDefault();
    event.stopPropagation();
    fieldset.classList.remove('target');
    openFile(source, event.dataTransfer.files[0]);
  };
  byId('sources').insertBefore(fieldset, byId('sources').lastElementChild);
  return source;
});

function openExample(source, name) {
  source.text.value = exampleConfigs[name] ?? '';
  source.examples.value = name;
  return open(source, name && new File([source.text.value], name));
}

function openText(source, text) {
  source.text.value = text;
  source.examples.value = '';
  return open(source, text.trim() && new File([text], 'config.json'));
}

function openFile(source, file) {
  source.text.value = source.examples.value = '';
  return open(source, file);
}

function open(source, file) {
  source.file = file || null;
  source.bytes = 0;
  models[source.index] = null;  // engine.js has none either until the file is read
  if (file)
    engine.ccall('open_file', null, ['number', 'string', 'number'], [source.index, file.name, file.size]);
  return read(source);
}

/** Reads the file by the slices that the library asks for. */
async function read(source) {
  const own = ++source.reads, {file} = source;
  let answer = {};
  while (file) {
    answer = ask('read_model', source.index, Number(byId('length').value), byId('layout').selectedIndex);
    if (answer.missing === undefined) break;
    const slice = file.slice(answer.missing, answer.missing + sliceBytes);
    const bytes = await slice.arrayBuffer().then((buffer) => new Uint8Array(buffer), () => null);
    if (own !== source.reads) return;  // the user has opened another file
    if (!bytes) {
      answer = {error: 'cannot be read'};
      break;
    }
    const place = engine.ccall(
        'add_slice', 'number', ['number', 'number', 'number'], [source.index, answer.missing, bytes.length]);
    engine.HEAPU8.set(bytes, place);
    source.bytes += bytes.length;
  }
  models[source.index] = answer.report === undefined ? null : answer;
  source.status.classList.toggle('error', answer.error !== undefined);
  source.status.textContent = !file ?
      '' :
      answer.error !== undefined ?
      `${file.name}: ${answer.error}` :
      `${file.name}: read ${grouped(source.bytes)} of ${grouped(file.size)} bytes`;
  show();
}

// The state of the page in its link.

function saveLink() {
  const state = new URLSearchParams();
  const set = (key, value) => value && state.set(key, value);
  for (const [source, example, text] of [
           [sources[0], 'model', 'config'], [sources[1], 'with', 'with_config']]) {
    set(example, source.examples.value);
    if (!source.examples.value && source.text.value.length <= maxLinkText) set(text, source.text.value);
  }
  set('layout', byId('layout').value);
  set('length', byId('length').value);
  set('layers', group);
  set('position', position);
  history.replaceState(null, '', `#${state}`);
}

async function loadLink() {
  const state = new URLSearchParams(location.hash.slice(1));
  const opened = (source, example, text) =>
      state.has(text) ? openText(source, state.get(text)) : openExample(source, state.get(example) ?? '');
  byId('layout').value = state.get('layout') ?? '';
  if (byId('layout').selectedIndex < 0) byId('layout').value = '';  // a link with an unknown layout
  byId('length').value = state.get('length') ?? '';
  await opened(sources[1], 'with', 'with_config');
  group = Number(state.get('layers') ?? 0);
  position = Number(state.get('position') ?? 20);
  if (!state.has('model') && !state.has('config')) state.set('model', 'llama_3_1_8b.json');
  await opened(sources[0], 'model', 'config');
}

// What is on the page.

function show() {
  const [model, other] = models, groups = model?.groups ?? [];
  byId('model').hidden = !model;
  byId('figures').hidden = groups.length === 0;
  byId('choice').hidden = groups.length < 2;
  byId('differences').hidden = !model || !other;
  if (model && other) {
    const sentences = ask('compare_files');
    if (sentences.length === 0) sentences.push('None: both rotate and attend alike.');
    byId('differences').querySelector('ul').innerHTML =
        sentences.map((s) => `<li>${escaped(s)}</li>`).join('');
  }
  if (model) {
    group = Math.max(0, Math.min(group, groups.length - 1));
    byId('group').replaceChildren(...groups.map((g, i) => new Option(g.type, i, false, i === group)));
    byId('report').innerHTML = reportHtml(model.report);
    byId('code').textContent = model.code.trim();
    curve = groups.length > 0 ? ask('scores_by_distance', 0, group) : null;
    draw();
  }
  saveLink();
}

/** The lines of `describe`: a label in the first 26 columns and its value, an item of a list, or a heading. */
function reportHtml(report) {
  const line = (text) => {
    if (text.startsWith('  - ')) return `<p>${escaped(text)}</p>`;
    if (text.startsWith('  '))
      return `<dl><dt>${escaped(text.slice(0, 26))}</dt><dd>${escaped(text.slice(26))}</dd></dl>`;
    return text && `<h3>${escaped(text)}</h3>`;
  };
  return report.split('\n').map(line).join('').replaceAll('</dl><dl>', '');
}

function draw() {
  const model = models[0], shown = model.groups[group];
  drawLayers(model);
  if (!shown) return;
  drawChannels(shown);
  drawWavelengths(shown);
  const slider = byId('position');
  slider.max = curve.positions.length - 1;
  slider.value = Math.max(0, curve.positions.findLastIndex((p) => p <= position));
  movePosition();
}

function movePosition() {
  const shown = models[0].groups[group], at = Number(byId('position').value);
  position = curve.positions[at];
  byId('place').textContent = grouped(position);
  byId('position').setAttribute('aria-valuetext', `position ${position}`);
  drawArrows(shown);
  drawScores(at);
}

// Figures. Each is as wide as its place, so that letters keep their size.

const text = (x, y, string, more = '') =>
    `<text x="${x.toFixed(1)}" y="${y.toFixed(1)}" ${more}>${escaped(string)}</text>`;
const path = (d, colour, more = '') => `<path d="${d}" fill="none" stroke="${colour}" ${more}/>`;
const rect = (x, y, width, height, fill, more = '') => `<rect x="${x.toFixed(1)}" y="${
    y.toFixed(1)}" width="${width.toFixed(1)}" height="${height.toFixed(1)}" fill="${fill}" ${more}/>`;

/** @param content  from the width of the figure to its height and elements */
function drawFigure(id, label, content) {
  const width = Math.max(260, byId(id).clientWidth), [height, elements] = content(width);
  byId(id).innerHTML = `<svg xmlns="http://www.w3.org/2000/svg" width="${width}" height="${
      height}" viewBox="0 0 ${width} ${height}" role="img" aria-label="${
      escaped(label)}" font-family="system-ui, sans-serif" font-size="13" fill="var(--ink)">${
      rect(0, 0, width, height, 'var(--paper)')}${elements}</svg><button type="button" aria-label="Save ${
      escaped(label)} as SVG">Save SVG</button>`;
  byId(id).querySelector('button').onclick = () => saveFigure(id);
}

/** Colours of the theme become those of the file. */
function saveFigure(id) {
  const theme = getComputedStyle(document.documentElement);
  const svg = byId(id).querySelector('svg').outerHTML.replace(
      /var\((--\w+)\)/g, (_, name) => theme.getPropertyValue(name).trim());
  const link = document.createElement('a');
  link.href = URL.createObjectURL(new Blob([svg], {type: 'image/svg+xml'}));
  link.download = `${id}.svg`;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10000);
}

/** A legend from `y` on, as drawFigure takes it. @param samples  [drawing of 22 by 12, text] */
function legend(y, width, samples) {
  const letters = Math.floor((width - 30) / 7.5),
        fitting = new RegExp(`.{1,${letters}}(?: |$)|.{${letters}}`, 'g');
  const lines = samples.flatMap(
      ([sample, words]) =>
          words.match(fitting).map((line, i) => [i === 0 ? sample : '', line, sample ? 30 : 0]));
  const elements = lines.map(
      ([sample, line, x], i) =>
          `<g transform="translate(0 ${y + 20 * i})">${sample}${text(x, 10, line)}</g>`);
  return [y + 20 * lines.length, elements.join('')];
}

/** One square for each layer, numbered; layers that rotate and attend alike look alike. */
function drawLayers({layers, groups}) {
  const colours = ['var(--purple)', 'var(--green)', 'var(--blue)'];
  const cell = (layer, size) => {
    const colour = colours[Math.max(0, groups.findIndex((g) => g.type === layer.type)) % colours.length];
    const frame = rect(
        0.5, 0.5, size - 1, size - 1, 'none',
        `stroke="${colour}" ${layer.window < 0 ? 'stroke-dasharray="3 3"' : ''}`);
    if (layer.rotation !== 'rotates') return frame;
    return frame +
        (layer.window > 0 ? rect(0.5, size * 0.7, size - 1, size * 0.3 - 0.5, colour) :
                            rect(0.5, 0.5, size - 1, size - 1, colour));
  };
  const words = (layer) => [layer.type && `${layer.type}:`, `${layer.rotation},`,
                            layer.window > 0 ? `window ${grouped(layer.window)}` :
                                layer.window === 0 ? 'no window' :
                                                     'window unknown']
                               .filter(Boolean)
                               .join(' ');
  const kinds = new Map();
  for (const layer of layers)
    kinds.set(words(layer), {layer, count: (kinds.get(words(layer))?.count ?? 0) + 1});
  drawFigure('layers', 'Map of the layers', (width) => {
    const size = 30, columns = Math.floor(width / size), rows = Math.ceil(layers.length / columns);
    const squares = layers.map((layer, i) => {
      const filled = layer.rotation === 'rotates' && layer.window <= 0;
      return `<g transform="translate(${size * (i % columns)} ${size * Math.floor(i / columns)})">${
          cell(layer, size - 4)}${
          text(
              (size - 4) / 2, layer.window > 0 ? 14 : 17, layers.length > 1 ? i : 'all',
              `text-anchor="middle" font-size="11" ${filled ? 'fill="var(--paper)"' : ''}`)}</g>`;
    });
    const samples = [...kinds].map(
        ([
          name, {layer, count}
        ]) => [cell(layer, 14), layers.length > 1 ? `${count} × ${name}` : `every layer ${name}`]);
    const [height, below] = legend(size * rows + 8, width, samples);
    return [height, squares.join('') + below];
  });
}

/** The strip of channels, with an arc from the first to the second channel of each pair. */
function drawChannels({headDim, pairs, layout, changes: kinds}) {
  drawFigure('channels', 'Channels of a head', (width) => {
    const each = width / headDim, middle = (channel) => each * (channel + 0.5);
    const radii = pairs.map(([first, second]) => Math.abs(middle(second) - middle(first)) / 2);
    const heights = radii.map((radius) => Math.min(Math.max(radius, 10), 58)), top = Math.max(...heights) + 6;
    const rotated = new Map(pairs.flatMap(([first, second], i) => [[first, i], [second, i]]));
    const strip = Array.from(
        {length: headDim},
        (_, channel) => rect(
            each * channel, top, Math.max(each - 0.5, 0.3), 18,
            rotated.has(channel) ? changes[kinds[rotated.get(channel)]].colour : 'var(--rule)'));
    const arcs = pairs.map(
        ([first, second], i) => path(
            // not rounded: an arc whose radius is too short for its ends is drawn higher
            `M${middle(first)} ${top}A${radii[i]} ${heights[i]} 0 0 1 ${middle(second)} ${top}`,
            changes[kinds[i]].colour, `stroke-width="${Math.min(1, each / 3).toFixed(2)}"`));
    const from = Math.min(...rotated.keys()), to = Math.max(...rotated.keys());
    const last = pairs.length - 1;
    const samples = [['', `${layout}: channels ${from} to ${to} of ${headDim} rotate`]];
    for (const i of new Set([0, Math.min(1, last), last]))
      samples.push(['', `pair ${i} is channels ${pairs[i].join(' and ')}`]);
    for (const kind of [...new Set(kinds)].sort())
      samples.push([rect(0, 0, 22, 12, changes[kind].colour), `frequency ${changes[kind].name}`]);
    if (rotated.size < headDim) samples.push([rect(0, 0, 22, 12, 'var(--rule)'), 'not rotated']);
    const [height, below] = legend(top + 28, width, samples);
    return [height, strip.join('') + arcs.join('') + below];
  });
}

/** Axes around the place of a curve. An axis has a name, its ends, a scale, ticks and how a tick is written. */
function axes(width, height, x, y) {
  const left = 58, top = 10, right = width - 20, bottom = top + height;
  const share = (axis, value) =>
      (axis.scale(value) - axis.scale(axis.low)) / (axis.scale(axis.high) - axis.scale(axis.low));
  const xOf = (value) => left + (right - left) * share(x, value),
        yOf = (value) => bottom - height * share(y, value);
  const rules = x.ticks.map(
      (tick) => path(`M${xOf(tick).toFixed(1)} ${top}V${bottom}`, 'var(--rule)') +
          text(xOf(tick), bottom + 16, short(tick), 'text-anchor="middle"'));
  rules.push(...y.ticks.map(
      (tick) => path(`M${left} ${yOf(tick).toFixed(1)}H${right}`, 'var(--rule)') +
          text(left - 6, yOf(tick) + 4, short(tick), 'text-anchor="end"')));
  const names = text((left + right) / 2, bottom + 34, x.name, 'text-anchor="middle"') +
      text(0, 0, y.name, `text-anchor="middle" transform="translate(11 ${top + height / 2}) rotate(-90)"`);
  const line = (points, colour, more) => path(
      points.map(([a, b], i) => `${i ? 'L' : 'M'}${xOf(a).toFixed(1)} ${yOf(b).toFixed(1)}`).join(''), colour,
      more);
  return {xOf, yOf, line, frame: rules.join('') + names, end: bottom + 44};
}

const powersOfTen = (last) => Array.from({length: last + 1}, (_, i) => 10 ** i);

function drawWavelengths({before, after, changes: kinds, trained, context, window: sliding}) {
  const points = (tokens) => tokens.map((t, pair) => [pair, t]).filter(([, t]) => t !== null);
  const levels = [
    [trained, 'trained on', 'stroke-dasharray="2 3"'], [context, 'longest context', 'stroke-dasharray="8 4"'],
    [sliding, 'sliding window', 'stroke-dasharray="8 4"']
  ].filter(([tokens]) => tokens > 0);
  const decades =
      Math.ceil(Math.log10(Math.max(10, ...before, ...after, ...levels.map(([tokens]) => tokens))));
  const last = Math.max(1, after.length - 1), step = 2 ** Math.max(0, Math.ceil(Math.log2(last / 8)));
  const x = {
    name: 'pair',
    low: 0,
    high: last,
    scale: (v) => v,
    ticks: Array.from({length: Math.floor(last / step) + 1}, (_, i) => step * i)
  };
  const every = Math.ceil(decades / 10);
  const y = {
    name: 'tokens per full turn',
    low: 1,
    high: 10 ** decades,
    scale: Math.log10,
    ticks: powersOfTen(decades).filter((_, i) => i % every === 0)
  };
  drawFigure('wavelengths', 'Wavelengths of all pairs before and after scaling', (width) => {
    const plot = axes(width, 240, x, y);
    const dots = points(after).map(
        ([pair, tokens]) => `<circle cx="${plot.xOf(pair).toFixed(1)}" cy="${
            plot.yOf(tokens).toFixed(1)}" r="2.4" fill="${changes[kinds[pair]].colour}"/>`);
    const elements = [plot.frame, plot.line(points(before), 'var(--grey)', 'stroke-width="1.5"'), ...dots];
    const samples = [[path('M0 6H22', 'var(--grey)', 'stroke-width="1.5"'), 'by the base alone']];
    for (const kind of [...new Set(kinds)].sort()) {
      const sample = `<circle cx="11" cy="6" r="3" fill="${changes[kind].colour}"/>`;
      samples.push([
        sample, `${changes[kind].name}: ${kinds.filter((k) => k === kind).length} of ${kinds.length} pairs`
      ]);
    }
    for (const [tokens, name, dashes] of levels) {
      elements.push(plot.line([[0, tokens], [last, tokens]], 'var(--vermilion)', dashes));
      samples.push([path('M0 6H22', 'var(--vermilion)', dashes), `${name} ${grouped(tokens)} tokens`]);
    }
    const [height, below] = legend(plot.end, width, samples);
    return [height, elements.join('') + below];
  });
}

/** Each pair of a head of ones as an arrow, at position 0 and at the position of the slider. */
function drawArrows({pairs, changes: kinds}) {
  const from = ask('rotated_head', 0, group, 0), to = ask('rotated_head', 0, group, position);
  const drawn = pairs.slice(0, maxDials);
  drawFigure('arrows', 'Pairs as arrows at the position', (width) => {
    const size = drawn.length > 64 ? 38 : 48, radius = size / 2 - 7;
    const rows = Math.ceil(drawn.length / Math.floor(width / size)), columns = Math.ceil(drawn.length / rows);
    const [a, b] = pairs[0], unit = radius / Math.hypot(from[a], from[b]);
    const arrow = ([first, second], head, colour, more) => {
      const x = unit * head[first], y = -unit * head[second], angle = Math.atan2(y, x) * 180 / Math.PI;
      return path(`M0 0L${x.toFixed(1)} ${y.toFixed(1)}`, colour, more) +
          `<path d="M0 0L-6 -3V3Z" fill="${colour}" transform="translate(${x.toFixed(1)} ${
                 y.toFixed(1)}) rotate(${angle.toFixed(1)})"/>`;
    };
    const dials = drawn.map((pair, i) => {
      const x = size * (i % columns + 0.5), y = (size + 8) * Math.floor(i / columns) + size / 2;
      return `<g transform="translate(${x.toFixed(1)} ${y.toFixed(1)})"><circle r="${
          radius}" fill="none" stroke="var(--rule)"/>${arrow(pair, from, 'var(--rule)')}${
          arrow(pair, to, changes[kinds[i]].colour, 'stroke-width="1.6"')}${
          text(0, radius + 14, i, 'text-anchor="middle" font-size="10" fill="var(--grey)"')}</g>`;
    });
    return [(size + 8) * rows + 4, dials.join('')];
  });
}

function drawScores(at) {
  const {positions, scores} = curve, last = positions.length - 1;
  const low = Math.floor(4 * Math.min(0, ...scores)) / 4, high = Math.ceil(4 * Math.max(...scores)) / 4;
  const x = {
    name: 'distance of query and key (tokens)',
    low: 0,
    high: positions[last],
    scale: Math.log1p,
    ticks: [0, ...powersOfTen(Math.floor(Math.log10(positions[last])))]
  };
  const y = {
    name: 'q · k / head_dim',
    low,
    high,
    scale: (v) => v,
    ticks: Array.from({length: (high - low) * 4 + 1}, (_, i) => low + i / 4)
  };
  drawFigure('scores', 'Score of a query and a key against their distance', (width) => {
    const plot = axes(width, 220, x, y);
    const place = `${plot.xOf(positions[at]).toFixed(1)} `;
    const elements = plot.frame +
        plot.line(positions.map((p, i) => [p, scores[i]]), 'var(--blue)', 'stroke-width="1.6"') +
        plot.line([[positions[at], low], [positions[at], high]], 'var(--vermilion)') +
        `<circle cx="${place}" cy="${plot.yOf(scores[at]).toFixed(1)}" r="4" fill="var(--vermilion)"/>`;
    const samples = [
      [path('M0 6H22', 'var(--blue)', 'stroke-width="1.6"'), 'query and key of ones, key at position 0'],
      [
        '<circle cx="11" cy="6" r="4" fill="var(--vermilion)"/>',
        `query at position ${grouped(positions[at])}: ${scores[at].toFixed(6)}`
      ]
    ];
    const [height, below] = legend(plot.end, width, samples);
    return [height, elements + below];
  });
}

// Controls, and the start.

byId('layout').onchange = byId('length').onchange = () => sources.forEach(read);
byId('group').onchange = (event) => {
  group = Number(event.target.value);
  show();
};
byId('position').oninput = () => models[0] && movePosition();
byId('position').onchange = saveLink;
byId('copy').onclick = async (event) => {
  getSelection().selectAllChildren(byId('code'));
  const copied = await navigator.clipboard?.writeText(byId('code').textContent).then(() => true, () => false);
  event.target.textContent = copied ? 'Copied' : 'Selected: copy it with your keyboard';
};
addEventListener('resize', () => models[0] && draw());
addEventListener('hashchange', loadLink);
addEventListener(
    'dragover', (event) => event.preventDefault());  // else the browser leaves for a file that is dropped
addEventListener('drop', (event) => {
  event.preventDefault();
  openFile(sources[0], event.dataTransfer.files[0]);
});

createEngine().then((module) => {
  engine = module;
  return loadLink();
});
