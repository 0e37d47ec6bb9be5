// The header of a GGUF file that is dropped on the page: its keys without the tokenizer's texts, its tensors
// without their data (ggml docs/gguf.md). Billions of bytes stay where they are.

const MOST_HEADER = 64 * 2 ** 20;
const SIZES = { 0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8 };
const TEXT = 8, ARRAY = 9, BYTE = 0;

export async function ggufModel(file) {
  const bytes = new Uint8Array(await file.slice(0, MOST_HEADER).arrayBuffer());
  const view = new DataView(bytes.buffer), kept = [];
  let at = 8;
  const whole = () => Number(view.getBigUint64((at += 8) - 8, true));
  const short = () => view.getUint32((at += 4) - 4, true);
  const step = (size) => void (at += size);
  const text = () => {
    const length = whole();
    step(length);
    return new TextDecoder().decode(bytes.subarray(at - length, at));
  };
  const skip = (type) => {
    if (type === TEXT) return step(whole());
    if (type !== ARRAY) return step(SIZES[type]);
    const inner = short(), count = whole();
    if (SIZES[inner]) return step(SIZES[inner] * count);
    for (let index = 0; index < count; index++) skip(inner);
  };
  const tensors = whole(), keys = whole();
  for (let index = 0; index < keys; index++) {
    const start = at, name = text(), type = short(), value = at;
    skip(type);
    if (!name.startsWith("tokenizer.")) kept.push(bytes.subarray(start, at));
    else if (name === "tokenizer.ggml.tokens") kept.push(countAlone(bytes.subarray(start, value + 12)));
  }
  const infos = at;
  for (let index = 0; index < tensors; index++) {
    text();
    step(8 * short() + 12);
  }
  const head = bytes.slice(0, 24);
  new DataView(head.buffer).setBigUint64(16, BigInt(kept.length), true);
  const header = new Uint8Array(await new Blob([head, ...kept, bytes.subarray(infos, at)]).arrayBuffer());
  return { gguf: { name: file.name, bytes: file.size, header: inBase64(header) } };
}

// An array's key, type and length, with a byte in place of each of its texts.
function countAlone(start) {
  const found = start.slice(), view = new DataView(found.buffer), count = Number(view.getBigUint64(found.length - 8, true));
  view.setUint32(found.length - 12, BYTE, true);
  const whole = new Uint8Array(found.length + count);
  whole.set(found);
  return whole;
}

function inBase64(bytes) {
  let letters = "";
  for (let at = 0; at < bytes.length; at += 2 ** 15) letters += String.fromCharCode(...bytes.subarray(at, at + 2 ** 15));
  return btoa(letters);
}
