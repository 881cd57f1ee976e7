// Builds the browser code: `npm ci && npm run build` writes src/shardlab/server/static/build.
//
// The built files are committed, so a machine without npm can run the server. manifest.json records the digest of
// every source and every built file; tests/web/test_built_files.py compares them, and rebuilds if npm is installed.

import { createHash } from "node:crypto";
import { copyFileSync, mkdirSync, readFileSync, readdirSync, rmSync, writeFileSync } from "node:fs";
import { dirname, join, relative } from "node:path";
import { fileURLToPath } from "node:url";
import * as esbuild from "esbuild";
import subsetFont from "subset-font";

const root = dirname(fileURLToPath(import.meta.url));
const output = process.argv.includes("--out")
  ? process.argv[process.argv.indexOf("--out") + 1]
  : join(root, "../src/shardlab/server/static/build");

// Fonts under the SIL Open Font License, so that pages look the same on every machine. Half of each file is for weights
// and OpenType features that no style sheet uses: the pages use 400 to 700, tabular numbers, and no ligatures in code.
const SHAPING = ["ccmp", "kern", "locl", "mark", "mkmk"];
const FONTS = [
  { family: "inter", features: [...SHAPING, "calt", "tnum"] },
  { family: "jetbrains-mono", features: SHAPING },
];
const FONT_WEIGHTS = { min: 400, max: 700 };

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

// What a licence must allow to be shipped here, and a sentence that its text has.
const LICENCES = new Map([
  ["MIT", "Permission is hereby granted, free of charge"],
  ["BSD-0-Clause", "Permission to use, copy, modify, and/or distribute this software for any"],
  ["OFL-1.1", "SIL Open Font License, Version 1.1"],
]);

/** The packages whose code is in the files of a build, from esbuild's own list of inputs. */
function bundledPackages(metafile) {
  const names = new Set();
  for (const { inputs } of Object.values(metafile.outputs)) {
    for (const [path, { bytesInOutput }] of Object.entries(inputs)) {
      const match = /node_modules\/((?:@[^/]+\/)?[^/]+)\//.exec(path);
      if (match && bytesInOutput > 0) names.add(match[1]);
    }
  }
  return [...names].sort();
}

/** Name, version, licence and its full text of each package; the build fails if one of them is missing. */
function licenceNotices(names) {
  const byText = new Map();
  for (const name of names) {
    const folder = join(root, "node_modules", name);
    const { version, license } = JSON.parse(readFileSync(join(folder, "package.json"), "utf-8"));
    const file = readdirSync(folder).find((entry) => /^licen[cs]e(\.(md|txt))?$/i.test(entry));
    if (!file) throw new Error(`${name} has no licence file`);
    const text = readFileSync(join(folder, file), "utf-8").replace(/\r\n/g, "\n").trim();
    const sentence = LICENCES.get(license);
    if (!sentence) throw new Error(`${name} has the licence ${license}: decide whether it can be shipped`);
    if (!text.replace(/\s+/g, " ").includes(sentence)) throw new Error(`${name}: ${file} is not the text of ${license}`);
    byText.set(text, [...(byText.get(text) ?? []), `${name} ${version} (${license})`]);
  }
  return [...byText].map(([text, packages]) => `${packages.join("\n")}\n\n${text}\n`).join(`\n${"-".repeat(78)}\n\n`);
}

/** Write a font with all of its characters, and only the weights and features that the pages use. */
async function writeFont({ family, features }) {
  const folder = join(root, "node_modules/@fontsource-variable", family);
  const font = readFileSync(join(folder, "files", `${family}-latin-wght-normal.woff2`));
  const surrogates = { first: 0xd800, last: 0xdfff };
  const codePoints = Array.from({ length: 0x10000 }, (_, index) => index).filter((point) => point < surrogates.first || point > surrogates.last);
  const options = { targetFormat: "woff2", keepFeatures: features, variationAxes: { wght: FONT_WEIGHTS } };
  writeFileSync(join(output, `${family}.woff2`), await subsetFont(font, codePoints.map((point) => String.fromCodePoint(point)).join(""), options));
  copyFileSync(join(folder, "LICENSE"), join(output, `${family}-license.txt`));
}

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
  const pages = await esbuild.build({
    ...common,
    entryPoints: entries,
    outdir: output,
    entryNames: "[name]",
    chunkNames: "chunk-[hash]",
    splitting: true,
    minify: true,
    legalComments: "none", // third-party-licenses.txt has the full texts
    metafile: true,
  });
  // One file without imports: the offline page of a recording has it inline.
  const offline = await esbuild.build({
    ...common,
    entryPoints: [join(root, "src/offline/recording_page.tsx")],
    outfile: join(output, "recording_page.js"),
    format: "iife",
    minify: true,
    legalComments: "none",
    metafile: true,
  });
  const fontPackages = FONTS.map(({ family }) => `@fontsource-variable/${family}`);
  const packages = new Set([...bundledPackages(pages.metafile), ...bundledPackages(offline.metafile), ...fontPackages]);
  const title = "The browser code of shardlab contains these packages, each under its own licence.\n\n";
  writeFileSync(join(output, "third-party-licenses.txt"), title + licenceNotices([...packages].sort()));
  // The offline page has its script inline, and so the licences of what is in it.
  writeFileSync(join(output, "recording_page-licenses.txt"), licenceNotices(bundledPackages(offline.metafile)));
  // Its style, likewise: the tokens and frames of the pages, then the viewer's own. A file that must not load anything
  // has no web fonts; the system's take their place.
  const css = styleSheets.map((path) => readFileSync(path, "utf-8")).join("\n").replace(/@font-face\s*\{[^}]*\}/g, "");
  const { code } = await esbuild.transform(css, { loader: "css", minify: true, target: "es2022" });
  writeFileSync(join(output, "recording_page.css"), code);
  for (const font of FONTS) await writeFont(font);
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
