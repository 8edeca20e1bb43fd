// Uncompressed tar of plain files, as a Blob that refers to the files instead of copying them into memory.

const BLOCK = 512;
const LONGEST_NAME = 100;
const FILE = "0";
const LONG_NAME = "L"; // GNU's: the content of this member is the name of the next one

/** @param {{path: string, file: Blob}[]} files */
export function tar(files) {
  const encoder = new TextEncoder();
  const parts = [];
  for (const { path, file } of files) {
    const name = encoder.encode(path);
    if (name.length > LONGEST_NAME) {
      parts.push(header(encoder.encode("././@LongLink"), name.length, LONG_NAME), name, padding(name.length));
    }
    parts.push(header(name.slice(0, LONGEST_NAME), file.size, FILE), file, padding(file.size));
  }
  parts.push(new Uint8Array(2 * BLOCK));
  return new Blob(parts, { type: "application/x-tar" });
}

function header(name, size, type) {
  const block = new Uint8Array(BLOCK);
  const write = (at, text) => block.set(new TextEncoder().encode(text), at);
  block.set(name, 0);
  write(100, "0000644\0");
  write(108, "0000000\0");
  write(116, "0000000\0");
  write(124, `${size.toString(8).padStart(11, "0")}\0`);
  write(136, "00000000000\0");
  write(148, "        "); // the checksum counts as spaces in itself
  write(156, type);
  write(257, "ustar\x0000");
  const sum = block.reduce((total, byte) => total + byte, 0);
  write(148, `${sum.toString(8).padStart(6, "0")}\0 `);
  return block;
}

function padding(size) {
  return new Uint8Array((BLOCK - (size % BLOCK)) % BLOCK);
}
