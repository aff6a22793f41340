// node compile.cjs FILE.ksy DIRECTORY: writes the Python module of a Kaitai description.
const fs = require("fs");
const path = require("path");
const compiler = require("kaitai-struct-compiler");
const yaml = require("yaml");

const [source, directory] = process.argv.slice(2);
compiler.compile("python", yaml.parse(fs.readFileSync(source, "utf8")), null, false).then(
  (files) => {
    for (const [name, text] of Object.entries(files)) {
      fs.writeFileSync(path.join(directory, name), text);
    }
  },
  (problem) => {
    console.error(String(problem));
    process.exit(1);
  },
);
