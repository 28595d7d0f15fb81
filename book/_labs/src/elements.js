/* Elements that labs are drawn with. */

export const make = (tag, className = "", text = "") => {
  const made = document.createElement(tag);
  made.className = className;
  made.textContent = text;
  return made;
};

/* label: for screen readers, where the text alone does not say what the button belongs to. */
export const button = (text, action, label) => {
  const made = make("button", "lab-button", text);
  made.type = "button";
  if (label) made.setAttribute("aria-label", label);
  made.addEventListener("click", action);
  return made;
};

/* Show HTML that code has made, without what would act on the whole page, such as leave it. */
export const setHtml = (element, html) => {
  const inert = document.createElement("template");
  inert.innerHTML = html;
  for (const each of inert.content.querySelectorAll("base, link, meta")) each.remove();
  element.replaceChildren(inert.content);
};

/* An element whose text is read out when it changes. */
export const live = (tag, className) => {
  const made = make(tag, className);
  made.setAttribute("role", "status");
  return made;
};
