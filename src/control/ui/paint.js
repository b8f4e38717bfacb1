// Puts text and bars into the page. Names come from peers: everything goes in as text, nothing as markup. What did
// not change is left alone, so that a selection, the focus or a reader's place survives a round.

const SVG = "http://www.w3.org/2000/svg";

export const at = (id) => document.getElementById(id);

export function element(tag, className = "") {
  const made = document.createElement(tag);
  if (className !== "") made.className = className;
  return made;
}

export function say(node, text, className) {
  if (node.textContent !== text) node.textContent = text;
  if (className !== undefined && node.className !== className) node.className = className;
}

export function show(node, is_shown) {
  if (node.hidden === is_shown) node.hidden = !is_shown;
}

// A paragraph that is there only if it has something to say.
export function remark(id, text) {
  show(at(id), text !== "");
  say(at(id), text);
}

// Makes a parent have as many children as there are values, and sets each.
export function each(parent, values, make, set) {
  while (parent.children.length > values.length) parent.lastElementChild.remove();
  while (parent.children.length < values.length) parent.append(make(values[parent.children.length]));
  values.forEach((value, index) => set(parent.children[index], value, index));
}

// A bar of parts, each a share of 1 with a fill. What it shows is in the text beside it, too.
export const bar = (...parts) => ({ parts });
export const thin = (...parts) => ({ parts, is_thin: true });

function setBar(node, { parts, is_thin }) {
  const name = is_thin ? "bar thin" : "bar";
  if (node.className !== name) node.className = name;
  each(node, parts, () => element("i"), (part, { share, fill }) => {
    const width = `${(100 * Math.min(1, Math.max(0, share || 0))).toFixed(2)}%`;
    if (part.style.width !== width) part.style.width = width;
    if (part.className !== `fill-${fill}`) part.className = `fill-${fill}`;
  });
}

function makeBar() {
  const made = element("div", "bar");
  made.setAttribute("aria-hidden", "true");
  return made;
}

// A cell is a text, or `{ text, kind, word, note, bars }`: its class, the class of its text, a second line, and bars above both.
function setCell(cell, given) {
  const { text, kind = "", word = "", note = "", bars = [] } = typeof given === "string" ? { text: given } : given;
  if (cell.className !== kind) cell.className = kind;
  if (cell.children.length === 0) cell.append(element("div"), element("span"), element("span", "cell-note"));
  const [pictures, words, below] = cell.children;
  each(pictures, bars, makeBar, setBar);
  show(pictures, bars.length > 0);
  say(words, text, word);
  show(below, note !== "");
  say(below, note);
}

function makeCell(tag) {
  const made = element(tag);
  if (tag === "th") made.scope = "row";
  return made;
}

// The rows of a table; the first cell of each is its heading.
export function rows(body, table) {
  each(body, table, () => element("tr"), (row, cells) => {
    while (row.children.length > cells.length) row.lastElementChild.remove();
    while (row.children.length < cells.length) row.append(makeCell(row.children.length === 0 ? "th" : "td"));
    cells.forEach((cell, index) => setCell(row.children[index], cell));
  });
}

export const number = (text, note = "") => ({ text, kind: "number", note });

function makeCard() {
  const made = element("div", "card");
  made.append(element("span", "note"), element("b"), element("span", "note"));
  return made;
}

// Cards of `{ label, value, kind, note }`.
export function cards(host, values) {
  each(host, values, makeCard, (card, { label, value, kind = "", note = "" }) => {
    say(card.children[0], label);
    say(card.children[1], value, kind);
    say(card.children[2], note);
  });
}

// Pairs of a term and its value.
export function terms(host, pairs) {
  const flat = pairs.flatMap(([term, value]) => [{ tag: "dt", text: term }, { tag: "dd", text: value }]);
  each(host, flat, ({ tag }) => element(tag), (node, { text }) => say(node, text));
}

// A table of its own with headings, made once; `key` says when it has to be made anew.
export function matrix(host, tables) {
  each(host, tables, () => element("div", "wide"), (place, { key, caption, headings, cells }) => {
    if (place.dataset.key !== key) {
      place.dataset.key = key;
      place.tabIndex = 0;
      place.setAttribute("role", "region");
      place.setAttribute("aria-label", caption);
      const table = element("table");
      const head = element("tr");
      for (const heading of headings) {
        const cell = element("th");
        cell.scope = "col";
        cell.textContent = heading;
        head.append(cell);
      }
      table.append(element("caption"), element("thead"), element("tbody"));
      table.children[1].append(head);
      place.replaceChildren(table);
    }
    const [table] = place.children;
    say(table.caption, caption);
    rows(table.tBodies[0], cells);
  });
}

// Shapes of a drawing: `[tag, attributes, text]`.
export function draw(svg, shapes) {
  const made = shapes.map(([tag, attributes, text]) => {
    const shape = document.createElementNS(SVG, tag);
    for (const [name, value] of Object.entries(attributes)) shape.setAttribute(name, String(value));
    if (text !== undefined) shape.textContent = text;
    return shape;
  });
  svg.replaceChildren(...made);
}
