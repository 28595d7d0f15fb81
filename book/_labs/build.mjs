/* Builds what the labs load, from this folder and its packages, into the folder given as argument:

     labs.js    on every page with a lab: buttons, and what loads the rest
     kit.js     editors, outputs, Python's worker: loaded at the first click
     python.js  Pyodide as compressed base64: loaded with the kit

   Node's modules are looked for in the folder given as second argument. */
import { createHash } from "node:crypto";
import { mkdirSync, readFileSync, writeFileSync } from "node:fs";
import { createRequire } from "node:module";
import { dirname, join, resolve } from "node:path";
import { fileURLToPath } from "node:url";
import { gzipSync } from "node:zlib";

const here = dirname(fileURLToPath(import.meta.url));
const [target, packages] = process.argv.slice(2).map((path) => resolve(path));
const require = createRequire(join(packages, "package.json"));
const esbuild = require("esbuild");
const PYODIDE = ["pyodide.asm.wasm", "pyodide.asm.js", "pyodide.js", "pyodide-lock.json", "python_stdlib.zip"];

const options = {
  bundle: true,
  minify: true,
  write: false,
  format: "iife",
  target: ["es2022"],
  legalComments: "inline",
  nodePaths: [join(packages, "node_modules")],
};

const text = async (entry, more = {}) => {
  const built = await esbuild.build({ ...options, ...more, entryPoints: [join(here, entry)] });
  return built.outputFiles[0].text;
};

const worker = await text("worker.js");
const asModule = {
  name: "worker",
  setup(build) {
    build.onResolve({ filter: /^labs:worker$/ }, () => ({ path: "worker", namespace: "labs" }));
    build.onLoad({ filter: /.*/, namespace: "labs" }, () => ({ contents: worker, loader: "text" }));
  },
};

/* An empty list of packages, so that Python offers none that would have to be downloaded. */
const content = (name) => {
  const bytes = readFileSync(join(packages, "node_modules", "pyodide", name));
  if (name !== "pyodide-lock.json") return bytes;
  const lock = JSON.parse(bytes);
  return Buffer.from(JSON.stringify({ ...lock, packages: {} }));
};
const files = Object.fromEntries(
  PYODIDE.map((name) => [name, gzipSync(content(name), { level: 9 }).toString("base64")]),
);

mkdirSync(target, { recursive: true });
const results = {
  "labs.js": await text("src/labs.js"),
  "kit.js": await text("src/kit.js", { globalName: "courseLabsKit", plugins: [asModule] }),
  "python.js": `window.courseLabsFiles=${JSON.stringify(files)};\n`,
};
const hash = createHash("sha256");
for (const [name, content] of Object.entries(results)) {
  writeFileSync(join(target, name), content);
  hash.update(name).update(content);
  console.log(`${name}: ${(content.length / 1024).toFixed(0)} KiB`);
}
writeFileSync(join(target, "built.txt"), `${hash.digest("hex")}\n`);
