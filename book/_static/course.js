/* "Download notebook" downloads. A browser opens a linked file from disk, whatever the link's
   `download` attribute says; so the notebook is also there as a script, which hands it over. */
"use strict";

const saveNotebook = (name, text) => {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(new Blob([text], { type: "application/x-ipynb+json" }));
  link.download = name;
  link.click();
};

document.addEventListener("click", (event) => {
  const link = event.target.closest("a.btn-download-notebook-button");
  if (!link) return;
  event.preventDefault();
  const script = document.createElement("script");
  script.src = `${link.href}.js`;
  document.head.append(script);
});
