// node compile.mjs PYODIDE ARCHIVE QUESTIONS: the archive written again with the bytecode of every module that
// answering these questions imports, made by the Python that will run it. Compiling them is most of a first visit.

import fs from "node:fs";
import path from "node:path";
import { pathToFileURL } from "node:url";

const [pyodide, archive, questions] = process.argv.slice(2);
const { loadPyodide } = await import(pathToFileURL(path.join(path.resolve(pyodide), "pyodide.mjs")));
const python = await loadPyodide({ indexURL: `${path.resolve(pyodide)}/` });
python.unpackArchive(new Uint8Array(fs.readFileSync(archive)), "zip", { extractDir: "/memsheet" });
python.globals.set("questions", questions);
python.runPython(`
import json, pathlib, py_compile, sys, zipfile
sys.dont_write_bytecode = True
sys.path.insert(0, "/memsheet")
from memsheet.questions.ask import ask

for question in json.loads(questions):
    ask(question)
root = pathlib.Path("/memsheet")
for module in list(sys.modules.values()):
    if str(getattr(module, "__file__", None) or "").startswith("/memsheet/"):
        py_compile.compile(module.__file__, invalidation_mode=py_compile.PycInvalidationMode.UNCHECKED_HASH)
with zipfile.ZipFile("/compiled.zip", "w", zipfile.ZIP_DEFLATED, compresslevel=9) as held:
    for file in sorted(root.rglob("*")):
        if file.is_file():
            held.writestr(zipfile.ZipInfo(str(file.relative_to(root))), file.read_bytes(), zipfile.ZIP_DEFLATED)
`);
fs.writeFileSync(archive, python.FS.readFile("/compiled.zip"));
