/* A second copy of the reader's answers, in IndexedDB.

   While the machine is busy, Chromium can give a page an empty localStorage, and lose what the page
   writes there: 32 of 960 reloads, with four browsers on two cores. IndexedDB lost nothing in these
   reloads, but a page must wait for it. So pages show what localStorage has, then what is newer here. */

const DATABASE = "course-labs";
const STORE = "progress";

let opened = null;

const database = () => {
  opened ??= new Promise((resolve, reject) => {
    const request = indexedDB.open(DATABASE, 1);
    request.onupgradeneeded = () => request.result.createObjectStore(STORE);
    request.onsuccess = () => {
      request.result.onclose = () => {
        opened = null;
      };
      resolve(request.result);
    };
    request.onerror = () => reject(request.error);
  });
  return opened;
};

const result = (request) =>
  new Promise((resolve, reject) => {
    request.onsuccess = () => resolve(request.result);
    request.onerror = () => reject(request.error);
  });

/* [key, text] of all keys that start with a prefix. */
export const entries = async (prefix) => {
  const store = (await database()).transaction(STORE).objectStore(STORE);
  const range = IDBKeyRange.bound(prefix, `${prefix}\uffff`);
  const [keys, texts] = await Promise.all([result(store.getAllKeys(range)), result(store.getAll(range))]);
  return keys.map((key, at) => [key, texts[at]]);
};

export const put = async (key, text) => {
  const transaction = (await database()).transaction(STORE, "readwrite");
  transaction.objectStore(STORE).put(text, key);
  transaction.commit(); // at once, as the page may be left at once
};
