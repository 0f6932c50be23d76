// SPDX-License-Identifier: Apache-2.0
// Elements made from text. Values of flows are untrusted: they only become text, and attributes
// that are not code, never markup.

const SVG = "http://www.w3.org/2000/svg";

export function element(tag, attributes = {}, ...children) {
  return filled(document.createElement(tag), attributes, children);
}

export function svg(tag, attributes = {}, ...children) {
  return filled(document.createElementNS(SVG, tag), attributes, children);
}

function filled(made, attributes, children) {
  setAttributes(made, attributes);
  made.append(...children.filter((child) => child !== null));
  return made;
}

// null and false remove an attribute; a function handles the event of that name.
export function setAttributes(target, attributes) {
  for (const [name, value] of Object.entries(attributes)) {
    if (typeof value === "function") target[`on${name}`] = value;
    else if (value === null || value === false) target.removeAttribute(name);
    else if (target.getAttribute(name) !== String(value)) target.setAttribute(name, value);
  }
}

// Of what is pressed like a button, and is none: by a click, Enter or the space bar.
export function pressed(start) {
  const keydown = (event) => {
    if (event.key !== "Enter" && event.key !== " ") return;
    event.preventDefault();
    start();
  };
  return { role: "button", click: start, keydown };
}

export function setText(target, text) {
  if (target.textContent !== text) target.textContent = text;
}

// Makes the children of `parent` match `items`, in order. Elements of items that stay are kept, so
// that neither the focus nor a screen reader loses its place.
export function keepChildren(parent, items, key, make, update) {
  const known = new Map([...parent.children].map((child) => [child.dataset.key, child]));
  const focused = document.activeElement;
  let place = parent.firstElementChild;
  for (const item of items) {
    const id = key(item);
    let child = known.get(id);
    known.delete(id);
    if (!child) {
      child = make(item);
      child.dataset.key = id;
    }
    update(child, item);
    if (child === place) place = place.nextElementSibling;
    else parent.insertBefore(child, place);
  }
  for (const child of known.values()) child.remove();
  if (focused !== document.activeElement && focused.isConnected) focused.focus({ preventScroll: true });
}
