/* Python in a worker of its own, so that the page stays responsive while it runs.

   A page opened from disk may start a worker only from a blob, and such a worker can load nothing.
   So everything comes by message: Pyodide's files, and the course's as one JSON object from
   names to texts, all by gzip and base64. `fetch` answers from them, whatever is asked for.

   Messages in:  {start: {files, course}}, then {call: {id, name, args}}.
   Messages out: {ready}; {id, begun}, {id, output} while a cell runs, {id, value} or {id, failed}. */
"use strict";

const HOME = "file:///labs/";
const MIME = { "pyodide.asm.wasm": "application/wasm" };
const SIGALRM = 14;

// Switching stacks (JSPI) hangs Safari, and nothing here needs it.
delete WebAssembly.Suspending;
delete WebAssembly.promising;

const decode = (base64) => {
  const text = atob(base64);
  const bytes = new Uint8Array(text.length);
  for (let at = 0; at < text.length; at++) bytes[at] = text.charCodeAt(at);
  return bytes;
};

const unpack = (bytes) =>
  new Response(new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"))).arrayBuffer();

const writeFiles = (disk, root, texts) => {
  for (const [name, text] of Object.entries(texts)) {
    const path = `${root}/${name}`;
    disk.mkdirTree(path.slice(0, path.lastIndexOf("/")));
    disk.writeFile(path, text);
  }
};

/* Python asks element 0 of a buffer, again and again, whether a signal has come. Here the answer
   depends on the clock: it is the timer that `signal.setitimer` sets, and nothing else. */
const timer = {
  due: Infinity,
  interval: 0,
  alarm(seconds, interval) {
    const now = performance.now() / 1000;
    const left = timer.due === Infinity ? 0 : Math.max(timer.due - now, 0.001);
    timer.due = seconds > 0 ? now + seconds : Infinity;
    timer.interval = interval;
    return left;
  },
  get 0() {
    const now = performance.now() / 1000;
    if (now < timer.due) return 0;
    timer.due = timer.interval > 0 ? now + timer.interval : Infinity;
    return SIGALRM;
  },
  set 0(_) {},
};

/* A reader may run what somebody else has written. So Python reaches nothing that outlives the page
   or leads out of it: no storage of the site, no other page, no server, and no worker that has them. */
const WITHHELD = [
  "indexedDB", "caches", "BroadcastChannel", "Worker", "SharedWorker", "XMLHttpRequest", "WebSocket",
  "WebSocketStream", "EventSource", "WebTransport", "fetch",
];

const withhold = (holder, names) => {
  for (let at = holder; at; at = Object.getPrototypeOf(at)) {
    for (const name of names) Reflect.deleteProperty(at, name);
  }
};

let kernel;

const start = async ({ files, course }) => {
  const contents = {};
  await Promise.all(
    Object.entries(files).map(async ([name, text]) => {
      contents[name] = await unpack(decode(text));
    }),
  );
  withhold(self, WITHHELD);
  withhold(self.navigator, ["storage", "storageBuckets", "locks", "serviceWorker"]);
  self.fetch = async (url) => {
    const name = String(url.url ?? url).split("/").pop();
    if (!(name in contents)) throw new TypeError(`${url}: nothing is loaded from anywhere`);
    return new Response(contents[name], {
      headers: { "Content-Type": MIME[name] ?? "application/octet-stream" },
    });
  };
  for (const name of ["pyodide.asm.js", "pyodide.js"]) {
    const url = URL.createObjectURL(new Blob([contents[name]], { type: "text/javascript" }));
    importScripts(url);
    URL.revokeObjectURL(url);
  }
  const python = await self.loadPyodide({ indexURL: HOME, packageBaseUrl: HOME });
  withhold(self, ["importScripts"]);
  for (const name of Object.keys(contents)) delete contents[name];
  const texts = new TextDecoder().decode(await unpack(decode(course)));
  writeFiles(python.FS, "/course", JSON.parse(texts));
  python.registerJsModule("course_labs_page", { alarm: timer.alarm });
  python.runPython("import sys; sys.path.insert(0, '/course')");
  kernel = python.pyimport("course_pkg.pages.labs.browser");
  python.setInterruptBuffer(timer);
};

const call = ({ id, name, args }) => {
  const emit = (output) => self.postMessage({ id, output: JSON.parse(output) });
  self.postMessage({ id, begun: true });
  try {
    self.postMessage({ id, value: JSON.parse(kernel[name](emit, JSON.stringify(args))) });
  } catch (error) {
    self.postMessage({ id, failed: String(error.message ?? error) });
  }
};

self.onmessage = async ({ data }) => {
  if (data.call) return call(data.call);
  try {
    await start(data.start);
    self.postMessage({ ready: true });
  } catch (error) {
    self.postMessage({ ready: false, failed: String(error.stack ?? error) });
  }
};
