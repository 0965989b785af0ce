// Making and changing elements. All text goes in by textContent or setAttribute: nothing is ever read as markup.

const SVG = "http://www.w3.org/2000/svg";

export const byId = (id) => document.getElementById(id);

/** An element with a class, and children that are elements or texts. */
export function make(tag, className = "", ...children) {
  const element = document.createElement(tag);
  if (className) element.className = className;
  element.append(...children);
  return element;
}

/** An SVG element with attributes. */
export function draw(tag, attributes = {}, ...children) {
  const element = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  element.append(...children);
  return element;
}

/** Change a text only where it differs: the browser then has nothing to lay out anew. */
export function say(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

/** Change an attribute only where it differs; null takes it away. */
export function mark(element, name, value) {
  if (value === null) element.removeAttribute(name);
  else if (element.getAttribute(name) !== value) element.setAttribute(name, value);
}

/** Words to look for in anything that has them. */
export function words(text) {
  return text.toLowerCase().split(/\s+/).filter(Boolean);
}

/** Whether all words stand in a text that is in lower case. */
export function has(text, wanted) {
  return wanted.every((word) => text.includes(word));
}
