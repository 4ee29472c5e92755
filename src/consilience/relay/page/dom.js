// Elements are made from text only: nothing that comes from the relay is ever read as HTML.

const SVG = "http://www.w3.org/2000/svg";

export const byId = (id) => document.getElementById(id);

export function element(tag, attributes = {}, ...children) {
  return fill(document.createElement(tag), attributes, children);
}

export function shape(tag, attributes = {}, ...children) {
  return fill(document.createElementNS(SVG, tag), attributes, children);
}

function fill(made, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value !== undefined && value !== false) { made.setAttribute(name, value === true ? "" : value); }
  }
  made.append(...children.filter((child) => child !== null && child !== undefined));
  return made;
}

// Only what differs is written: a screen reader does not read it again, and a selection stays.
export function setText(place, text) {
  if (place.textContent !== text) { place.textContent = text; }
}

// The children of a place become one for each item, in this order; those with a known key are used again.
export function reconcile(place, items, key, make, update) {
  const known = new Map([...place.children].map((child) => [child.dataset.key, child]));
  let next = place.firstElementChild;
  for (const item of items) {
    const name = String(key(item));
    let child = known.get(name);
    known.delete(name);
    if (!child) {
      child = make(item);
      child.dataset.key = name;
    }
    if (child === next) { next = next.nextElementSibling; } else { place.insertBefore(child, next); }
    update(child, item);
  }
  for (const child of known.values()) { child.remove(); }
}

// Terms and values, as <div><dt><dd> in a <dl>.
export function facts(place, entries) {
  reconcile(place, entries, (entry) => entry.term,
    (entry) => element("div", {}, element("dt", {}, entry.term), element("dd"), element("dd", { class: "quiet" })),
    (child, entry) => {
      const [, value, note] = child.children;
      setText(value, entry.value);
      setText(note, entry.note ?? "");
      note.hidden = !entry.note;
      child.dataset.tone = entry.tone ?? "";
    });
}
