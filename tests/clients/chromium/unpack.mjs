// Unpacks the browser that the package carries, with the few libraries that a bare machine lacks, into the folder
// that TMPDIR names.
import { fileURLToPath } from "node:url";
import chromium, { inflate } from "@sparticuz/chromium";

const carried = new URL("./node_modules/@sparticuz/chromium/bin/al2023.tar.br", import.meta.url);
await inflate(fileURLToPath(carried));
await chromium.executablePath();
