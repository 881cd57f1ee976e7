// Builds the browser code: `npm ci && npm run build` writes src/shardlab/server/static/build.
//
// The built files are committed, so a machine without npm can run the server. manifest.json records the digest of
// every source and every built file; tests/web/test_built_files.py compares them, and rebuilds if npm is installed.

import { createHash } from "node:crypto";
import { copyFileSync, mkdirSync, readFileSync, readdirSync, rmSync, writeFileSync } from "node:fs";
import { dirname, join, relative } from "node:path";
import { fileURLToPath } from "node:url";
import * as esbuild from "esbuild";

const root = dirname(fileURLToPath(import.meta.url));
const output = process.argv.includes("--out")
  ? process.argv[process.argv.indexOf("--out") + 1]
  : join(root, "../src/shardlab/server/static/build");

// Fonts under the SIL Open Font License, so that pages look the same on every machine.
const FONTS = [
  ["inter", "inter"],
  ["jetbrains-mono", "jetbrains-mono"],
];

function listFiles(folder) {
  return readdirSync(folder, { recursive: true, withFileTypes: true })
    .filter((entry) => entry.isFile())
    .map((entry) => join(entry.parentPath, entry.name))
    .sort();
}

function digest(path) {
  return createHash("sha256").update(readFileSync(path)).digest("hex");
}

const common = {
  absWorkingDir: root,
  bundle: true,
  format: "esm",
  target: "es2022",
  jsx: "automatic",
  jsxImportSource: "preact",
  logLevel: "warning",
};

const styleSheets = ["visual.css", "site.css", "debugger.css"].map((name) => join(root, "../src/shardlab/server/static", name));

async function buildTests() {
  const tests = listFiles(join(root, "src")).filter((path) => /\.test\.tsx?$/.test(path));
  await esbuild.build({
    ...common,
    entryPoints: tests,
    platform: "node",
    outdir: join(root, "build-tests"),
    outExtension: { ".js": ".mjs" },
    packages: "external",
  });
}

async function buildPages() {
  rmSync(output, { recursive: true, force: true });
  mkdirSync(output, { recursive: true });
  const entries = listFiles(join(root, "src/entries")).filter((path) => /\.tsx?$/.test(path));
  await esbuild.build({
    ...common,
    entryPoints: entries,
    outdir: output,
    entryNames: "[name]",
    chunkNames: "chunk-[hash]",
    splitting: true,
    minify: true,
    legalComments: "none",
  });
  // One file without imports: the offline page of a recording has it inline.
  await esbuild.build({
    ...common,
    entryPoints: [join(root, "src/offline/recording_page.tsx")],
    outfile: join(output, "recording_page.js"),
    format: "iife",
    minify: true,
    legalComments: "none",
  });
  // Its style, likewise: the tokens and frames of the pages, then the viewer's own. A file that must not load anything
  // has no web fonts; the system's take their place.
  const css = styleSheets.map((path) => readFileSync(path, "utf-8")).join("\n").replace(/@font-face\s*\{[^}]*\}/g, "");
  const { code } = await esbuild.transform(css, { loader: "css", minify: true, target: "es2022" });
  writeFileSync(join(output, "recording_page.css"), code);
  for (const [family, name] of FONTS) {
    const folder = join(root, "node_modules/@fontsource-variable", family);
    copyFileSync(join(folder, "files", `${family}-latin-wght-normal.woff2`), join(output, `${name}.woff2`));
    copyFileSync(join(folder, "LICENSE"), join(output, `${name}-license.txt`));
  }
  const sources = [
    ...styleSheets,
    join(root, "build.mjs"),
    join(root, "package.json"),
    join(root, "package-lock.json"),
    join(root, "tsconfig.json"),
    ...listFiles(join(root, "src")).filter((path) => !/\.test\.tsx?$/.test(path)),
  ];
  const manifest = {
    sources: Object.fromEntries(sources.map((path) => [relative(root, path), digest(path)])),
    files: Object.fromEntries(listFiles(output).map((path) => [relative(output, path), digest(path)])),
  };
  writeFileSync(join(output, "manifest.json"), `${JSON.stringify(manifest, null, 1)}\n`);
}

await (process.argv.includes("--tests") ? buildTests() : buildPages());
