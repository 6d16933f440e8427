// Runs the page from its files in headless Chromium and compares what it shows with rope_inspect_config.
//
//     node check_page.mjs CHROMIUM PAGE_FOLDER INSPECT_CONFIG CONFIGS
//
// Chromium is driven by its DevTools protocol over a pipe: messages of JSON, each ended by a zero byte.

import {spawn, spawnSync} from 'node:child_process';
import {mkdtempSync, readdirSync, readFileSync, rmSync, statSync, writeFileSync} from 'node:fs';
import {tmpdir} from 'node:os';
import {join, resolve} from 'node:path';
import {pathToFileURL} from 'node:url';

const [chromium, folder, inspectConfig, configs] = process.argv.slice(2);
const scratch = mkdtempSync(join(tmpdir(), 'rope_page_'));
const examples = readdirSync(configs).filter((name) => name.endsWith('.json'));
let failures = 0;

function check(holds, claim) {
  console.log(`${holds ? 'ok    ' : 'FAILED'}  ${claim}`);
  if (!holds) ++failures;
}

// Chromium.

const browser = spawn(
    chromium,
    [
      '--headless=new', '--no-sandbox', '--disable-gpu', '--hide-scrollbars', '--remote-debugging-pipe',
      `--user-data-dir=${join(scratch, 'profile')}`
    ],
    {stdio: ['ignore', 'ignore', 'ignore', 'pipe', 'pipe']});
const waiting = new Map(), complaints = [];
let received = '', messages = 0, session;

browser.stdio[4].setEncoding('utf8').on('data', (data) => {
  const parts = (received + data).split('\0');
  received = parts.pop();
  for (const message of parts.map((part) => JSON.parse(part))) {
    if (message.method === 'Runtime.exceptionThrown') {
      const {exception, text} = message.params.exceptionDetails;
      complaints.push(exception?.description ?? text);
    }
    if (!waiting.has(message.id)) continue;
    const {done, failed} = waiting.get(message.id);
    waiting.delete(message.id);
    message.error ? failed(new Error(message.error.message)) : done(message.result);
  }
});

function send(method, params = {}) {
  const id = ++messages;
  browser.stdio[3].write(JSON.stringify({id, method, params, sessionId: session}) + '\0');
  return new Promise((done, failed) => waiting.set(id, {done, failed}));
}

/** The value of a JavaScript expression in the page. */
async function evaluate(expression) {
  const {result, exceptionDetails} =
      await send('Runtime.evaluate', {expression, awaitPromise: true, returnByValue: true});
  if (exceptionDetails) throw new Error(`${expression}: ${exceptionDetails.exception?.description}`);
  return result.value;
}

async function until(expression, seconds = 20) {
  for (const end = Date.now() + 1000 * seconds; Date.now() < end;
       await new Promise((done) => setTimeout(done, 20)))
    if (await evaluate(expression)) return;
  throw new Error(`not true after ${seconds} s: ${expression}`);
}

async function visit(hash) {
  await send('Page.navigate', {url: 'about:blank'});
  await send('Page.navigate', {url: `${pathToFileURL(resolve(folder, 'index.html'))}#${hash}`});
  await until(`document.readyState === 'complete' && document.querySelector('.status')?.textContent !== ''`);
}

async function openFile(path, index = 0) {
  const {root} = await send('DOM.getDocument');
  const {nodeIds} = await send('DOM.querySelectorAll', {nodeId: root.nodeId, selector: '.file'});
  const name = path.split('/').pop();
  await send('DOM.setFileInputFiles', {nodeId: nodeIds[index], files: [resolve(path)]});
  await until(
      `document.querySelectorAll('.status')[${index}].textContent.startsWith(${JSON.stringify(name)})`);
}

async function press(key, modifiers = 0) {
  const text = {Enter: '\r', ' ': ' '}[key];
  const code = {Tab: 9, Enter: 13, ' ': 32, ArrowDown: 40, ArrowRight: 39}[key];
  await send('Input.dispatchKeyEvent', {type: 'keyDown', key, text, windowsVirtualKeyCode: code, modifiers});
  await send('Input.dispatchKeyEvent', {type: 'keyUp', key, windowsVirtualKeyCode: code, modifiers});
}

async function screenshot(name) {
  const {data} = await send('Page.captureScreenshot', {captureBeyondViewport: true});
  writeFileSync(join(folder, name), Buffer.from(data, 'base64'));
}

const resize = (width, height) =>
    send('Emulation.setDeviceMetricsOverride', {width, height, deviceScaleFactor: 1, mobile: false});
const theme = (value) =>
    send('Emulation.setEmulatedMedia', {features: [{name: 'prefers-color-scheme', value}]});
const status = (index = 0) => evaluate(`document.querySelectorAll('.status')[${index}].textContent`);
const position = () => evaluate(`document.getElementById('place').textContent`);

// What is compared.

const words = (text) => text.split(/\s+/).filter(Boolean).join(' ');
const shownWords = async () => words(await evaluate(
    `document.getElementById('report').innerText + '\\n' + document.getElementById('code').innerText`));

function inspected(...files) {
  const {stdout} = spawnSync(inspectConfig, files, {encoding: 'utf8', env: {...process.env, COLUMNS: ''}});
  return stdout;
}

async function checkExamples() {
  check(examples.length > 0, `there are ${examples.length} examples`);
  for (const name of examples) {
    await visit(new URLSearchParams({model: name}));
    const expected = words(inspected(join(configs, name)));
    check(
        expected.length > 500 && await shownWords() === expected,
        `${name} is described as rope_inspect_config does`);
  }
  const pair = ['llama_3_8b.json', 'llama_3_1_8b.json'];
  await visit(new URLSearchParams({model: pair[0], with: pair[1]}));
  await until(`!document.getElementById('differences').hidden`);
  const shown = await evaluate(
      `[...document.querySelectorAll('#differences li')].map((li) => li.textContent).join('\\n')`);
  const text = inspected(...pair.map((name) => join(configs, name)));
  const expected = text.slice(text.indexOf(':\n', text.indexOf(' differs from ')) + 2);
  check(
      shown.length > 50 && words(shown) === words(expected),
      `${pair.join(' and ')} differ as rope_inspect_config says`);
}

async function checkFiles() {
  const path = (name, bytes) => {
    writeFileSync(join(scratch, name), bytes);
    return join(scratch, name);
  };
  const opened = async (file) => {
    await openFile(file);
    return status();
  };
  await visit('');
  const size = 30 << 20;
  check(
      /parse error/.test(await opened(path('malformed.json', '{"model_type": "llama", '))),
      'a malformed config is an error');
  check(await evaluate(`document.getElementById('model').hidden`), 'nothing is shown of it');
  check(
      /rope_theta/.test(
          await opened(path('wrong.json', '{"model_type": "llama", "head_dim": 64, "rope_theta": "ten"}'))),
      'an error names its key');
  check(
      /at most 4 MiB/.test(await opened(path('large.json', ' '.repeat(size)))),
      'a config of 30 MB is an error');
  check(
      /is not a GGUF file/.test(await opened(path('malformed.gguf', 'GGUX'))),
      'a malformed GGUF file is an error');

  const file = path('model.gguf', ggufFile(size)), text = await opened(file);
  const read = Number(/read ([\d,]+) of/.exec(text)?.[1].replaceAll(',', ''));
  check(
      read > 0 && read <= 4 << 20 && statSync(file).size > size,
      `of a GGUF file of 30 MB some slices are read: ${text}`);
  check(
      await shownWords() === words(inspected(file)), 'a GGUF file is described as rope_inspect_config does');
  check(
      /name the layout in the options/.test(
          await opened(path('novel.json', '{"model_type": "novel", "head_dim": 8, "rope_theta": 10000}'))),
      'an unknown architecture needs a layout');
  await evaluate(`layout.value = 'interleaved', layout.onchange()`);
  await until(`!document.getElementById('model').hidden`);
  check((await shownWords()).includes('layout interleaved'), 'the layout may be chosen');
  for (const [index, target] of [[0, 'body'], [1, 'fieldset + fieldset']]) {
    await evaluate(`{
      const dropped = new DataTransfer();
      dropped.items.add(new File(['{"model_type": "llama", "head_dim": 64}'], 'dropped_${index}.json'));
      document.querySelector('${target}').dispatchEvent(
          new DragEvent('drop', {dataTransfer: dropped, bubbles: true, cancelable: true}));
    }`);
    await until(`document.querySelectorAll('.status')[${index}].textContent.startsWith('dropped_${
        index}.json: read')`);
    const names = await evaluate(`sources.map((source) => source.file?.name)`);
    check(
        names.filter((name) => name === `dropped_${index}.json`).length === 1,
        `a file may be dropped on ${target}`);
  }
  const both = await evaluate(
      `Promise.all([openExample(sources[1], 'llama_3_8b.json'), openExample(sources[0], 'llama_3_1_8b.json')])
      .then(() => document.querySelectorAll('#differences li').length, (error) => String(error))`);
  check(both > 0, `two files may be opened at the same time: ${both} differences`);
}

/** Llama with a long vocabulary and divisors of frequencies at the end of the file. */
function ggufFile(size) {
  const u32 = (n) => Buffer.from(new Uint32Array([n]).buffer),
        u64 = (n) => Buffer.from(new BigUint64Array([BigInt(n)]).buffer);
  const string = (s) => Buffer.concat([u64(s.length), Buffer.from(s)]);
  const number = (key, n) => Buffer.concat([string(key), u32(4), u32(n)]);
  const tokens = Array.from({length: 100000}, (_, i) => string(`token ${i}`));
  const divisors = Float32Array.from({length: 64}, (_, i) => i < 32 ? 1 : 8);
  const head = Buffer.concat([
    Buffer.from('GGUF'),
    u32(3),
    u64(1),
    u64(6),
    string('tokenizer.ggml.tokens'),
    u32(9),
    u32(8),
    u64(tokens.length),
    ...tokens,
    string('general.architecture'),
    u32(8),
    string('llama'),
    number('llama.block_count', 2),
    number('llama.attention.head_count', 32),
    number('llama.embedding_length', 4096),
    number('llama.context_length', 131072),
    string('rope_freqs.weight'),
    u32(1),
    u64(64),
    u32(0),
    u64(size)
  ]);
  const file = Buffer.alloc(Math.ceil(head.length / 32) * 32 + size + 256);
  head.copy(file);
  Buffer.from(divisors.buffer).copy(file, file.length - 256);
  return file;
}

async function checkState() {
  await visit(new URLSearchParams({model: 'gemma_3_4b.json', layers: 1, position: 37}));
  check(
      await position() === '37' && await evaluate(`group`) === 1,
      'the link has the position and the kind of layers');
  const before = await shownWords(), hash = await evaluate('location.hash');
  await visit(hash.slice(1));
  check(
      await shownWords() === before && await evaluate('location.hash') === hash,
      'the link brings the page back');
  const pasted = '{"model_type": "llama", "rope_theta": 70000, "head_dim": 64}';
  await evaluate(`openText(sources[0], ${JSON.stringify(pasted)})`);
  await visit((await evaluate('location.hash')).slice(1));
  check((await shownWords()).includes('base 70000'), 'the link has the text that was pasted');
  await visit(new URLSearchParams({model: 'llama_3_1_8b.json', layout: 'x'}));
  check(
      await evaluate('layout.selectedIndex') === 0 && (await shownWords()).includes('layout half_split'),
      'a link with an unknown layout leaves the layout to the architecture');
}

async function checkFigures() {
  await visit(new URLSearchParams({model: 'llama_3_1_8b.json', position: 20}));
  await send('Browser.setDownloadBehavior', {behavior: 'allow', downloadPath: scratch});
  for (const id of ['layers', 'channels', 'wavelengths', 'arrows', 'scores']) {
    await evaluate(`document.querySelector('#${id} button').click()`);
    const file = join(scratch, `${id}.svg`);
    let svg = '';
    for (let tries = 0; tries < 250 && !svg.endsWith('</svg>'); ++tries) {
      await new Promise((done) => setTimeout(done, 20));
      svg = statSync(file, {throwIfNoEntry: false}) ? readFileSync(file, 'utf8') : '';
    }
    const valid = await evaluate(`!new DOMParser().parseFromString(${
        JSON.stringify(svg)}, 'image/svg+xml').querySelector('parsererror')`);
    check(svg.length > 300 && valid && !svg.includes('var('), `${id}.svg is a file of its own`);
  }
}

async function checkKeyboard() {
  await visit('');
  const reached = new Set();
  const focus = async (wanted) => {
    for (let tabs = 0; tabs < 60; ++tabs) {
      await press('Tab');
      const id = await evaluate(
          `(document.activeElement.id || document.activeElement.className || document.activeElement.tagName)`);
      reached.add(id);
      const outline = await evaluate(`getComputedStyle(document.activeElement).outlineStyle`);
      if (id !== 'BODY' && outline === 'none') check(false, `${id} shows that it has the focus`);
      if (id === wanted) return;
    }
    throw new Error(`no Tab leads to ${wanted}`);
  };
  await focus('example');
  const before = await shownWords();
  await press('ArrowDown');
  await until(`!document.getElementById('model').hidden`);
  await until(
      `document.querySelector('.status').textContent.includes(document.querySelector('.example').value)`);
  check(await shownWords() !== before, 'an arrow key chooses the next example');
  await focus('position');
  const from = Number(await position());
  await press('ArrowRight');
  check(Number(await position()) === from + 1, 'an arrow key moves the position by one');
  await focus('copy');
  await press('Enter');
  await until(`document.getElementById('copy').textContent !== 'Copy'`);
  check(await evaluate(`getSelection().toString().length > 100`), 'the code can be copied');
  check(
      ['file', 'layout', 'length', 'SUMMARY'].every((name) => reached.has(name)),
      'Tab leads to every control');
}

/** The least contrast of letters on the page, by the formula of WCAG 2.1. */
const leastContrast = `(() => {
  const numbers = (colour) => colour.match(/[\\d.]+/g).map(Number);
  const luminance = (colour) => numbers(colour).slice(0, 3).reduce((sum, c, i) => sum +
      [0.2126, 0.7152, 0.0722][i] * (c / 255 <= 0.04045 ? c / 255 / 12.92 : ((c / 255 + 0.055) / 1.055) ** 2.4), 0);
  const ground = (element) => {
    const colour = getComputedStyle(element).backgroundColor;
    return numbers(colour)[3] === 0 && element.parentElement ? ground(element.parentElement) : colour;
  };
  const letters = [...document.querySelectorAll('body *:not(svg *)')].filter((e) => e.offsetParent && e.innerText?.trim());
  return Math.min(...letters.map((e) => {
    const [a, b] = [luminance(getComputedStyle(e).color), luminance(ground(e))].sort((x, y) => y - x);
    return (a + 0.05) / (b + 0.05);
  }));
})()`;

/** Whether something is wider than the page, or letters than their figure. */
const overflows = `document.documentElement.scrollWidth > innerWidth ||
    [...document.querySelectorAll('svg')].some((svg) => [...svg.querySelectorAll('text')].some((text) => {
      const {left, right} = text.getBoundingClientRect(), figure = svg.getBoundingClientRect();
      return left < figure.left - 1 || right > figure.right + 1;
    }))`;

async function checkThemesAndWidths() {
  const grounds = new Set();
  for (const colours of ['light', 'dark'])
    for (const width of [360, 1000]) {
      await theme(colours);
      await resize(width, 800);
      const overflowing = [];
      for (const model of examples) {
        await visit(new URLSearchParams({model, with: 'gemma_3_4b.json', position: 20}));
        if (await evaluate(overflows)) overflowing.push(model);
      }
      check(
          overflowing.length === 0,
          `${colours}, ${width} pixels: nothing overflows ${overflowing.join(', ')}`);
      const contrast = await evaluate(leastContrast);
      check(
          contrast >= 4.5,
          `${colours}, ${width} pixels: the least contrast of letters is ${contrast.toFixed(2)}`);
      grounds.add(await evaluate('getComputedStyle(document.body).backgroundColor'));
      await visit(new URLSearchParams({model: 'gemma_3_4b.json', with: 'llama_3_1_8b.json', position: 20}));
      await screenshot(`${colours}_${width}.png`);
    }
  check(grounds.size === 2, 'both themes have a ground of their own');
}

function checkSize() {
  const bytes =
      ['index.html', 'page.css', 'page.js', 'engine.js'].map((name) => statSync(join(folder, name)).size);
  const all = bytes.reduce((a, b) => a + b);
  check(all < 1.5e6, `the page has ${all} bytes`);
}

try {
  const {targetId} = await send('Target.createTarget', {url: 'about:blank'});
  session = (await send('Target.attachToTarget', {targetId, flatten: true})).sessionId;
  for (const domain of ['Page', 'Runtime', 'DOM']) await send(`${domain}.enable`);
  checkSize();
  await checkExamples();
  await checkFiles();
  await checkState();
  await checkFigures();
  await checkKeyboard();
  await checkThemesAndWidths();
} catch (error) {
  check(false, error.stack);
}
check(complaints.length === 0, `no script fails: ${complaints.join('\n')}`);
browser.kill();
await new Promise((done) => browser.once('exit', done));
rmSync(scratch, {recursive: true, maxRetries: 5});
console.log(failures === 0 ? 'all checks of the page passed' : `${failures} checks of the page FAILED`);
process.exit(failures === 0 ? 0 : 1);
