const express = require("express");

const version = "v1";
const app = express();

app.get("/", (req, res) => res.type("text").send(`Hello from node-express ${version}\n`));
app.get("/env/:name", (req, res) => res.type("text").send(`${process.env[req.params.name] ?? ""}\n`));
app.get("/healthz", (req, res) => res.type("text").send("ok\n"));

const port = process.env.PORT || 8080;
const server = app.listen(port, () => console.log(`listening on ${port}, version ${version}`));

// Requests under way are finished before the process ends.
process.on("SIGTERM", () => server.close(() => process.exit(0)));
